"""The jobs that faults are injected into, and the faults of a run: which, how many at once, and when. No I/O.

Both jobs are small, so that steps are short, and able to lose two nodes at once. Their faults are drawn from a seed
before the run starts: their kinds, their order, and when each one comes. What a fault hits is drawn here too, as a
number of 0 to 1 that chooses among the targets that exist when its time has come.

`allows` says how many faults may be open at once: never more than can be recovered, else a failure would prove nothing.
A rank's state is on its node and on two others. So two nodes may be lost before the copies are complete again, counting
every node that was hit and has not recovered, whether or not it turns out to be lost.

`Timing` is one of two ways to time a run: many faults at once with short timeouts, or one at a time as a user would
meet it.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from deadpool.config.environment import PREFIX
from deadpool.config.job_config import JobConfig

SCRIPT = Path(__file__).with_name("script.py")
CRASH_SIGNAL = signal.SIGUSR1
PACE_VARIABLE = PREFIX + "CHAOS_PACE_S"
"""Set for the training script: how long a step pauses."""

_STEPS = 1_000_000  # the job is stopped when it has recovered from all faults
_MODEL = ["--layers", "2", "--width", "64", "--sequence", "32", "--vocabulary", "256"]
_NOISE = ["--dropout", "0.1", "--clip", "1.0"]  # equal losses then prove that the state of the RNG was restored too


class Moment(Enum):
    """When a fault comes, relative to the one before it."""

    CALM = "calm"  # the job has recovered from all faults
    SOON = "soon"  # some time after it, whatever the job is doing
    FENCE = "fence"  # in the recovery that it causes, while survivors come to rest
    PLANNED = "planned"  # while newcomers build and load
    PREPARED = "prepared"  # while groups are rebuilt


IN_RECOVERY = (Moment.FENCE, Moment.PLANNED, Moment.PREPARED)
_MOMENTS = (Moment.CALM,) * 5 + (Moment.SOON,) * 3 + IN_RECOVERY

_CALM_DELAY_S = (0.2, 1.5)
_SOON_DELAY_S = (0.0, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    kind: str
    moment: Moment
    delay_s: float  # after the moment
    pick: float  # 0 to 1: chooses among the possible targets
    again: float  # 0 to 1: for a second choice
    long: bool  # a fault that lasts: longer than its detection takes


def draw(seed: str, count: int, kinds: Sequence[str], *, one_by_one: bool = False) -> list[Intent]:
    """A kind that is named several times comes more often. Each kind comes once before one comes twice."""
    rng = random.Random(seed)
    intents: list[Intent] = []
    bag: list[str] = []
    while len(intents) < count:
        if not bag:
            bag = _shuffled(rng, sorted(set(kinds))) + _shuffled(rng, _beyond_the_first(kinds))
        intents.append(_intent(rng, bag.pop(0), calm=one_by_one or not intents))
    return intents


def full_disk(full_s: float) -> list[Intent]:
    """The run folder is full for so long; a node is lost after a third of that, and a trainer after two thirds."""
    first = Intent(kind="disk_full", moment=Moment.CALM, delay_s=0.0, pick=0.0, again=0.0, long=True)
    later = replace(first, moment=Moment.SOON, delay_s=full_s / 3)
    return [first, replace(later, kind="kill_node"), replace(later, kind="kill_trainer")]


def _beyond_the_first(kinds: Sequence[str]) -> list[str]:
    rest = list(kinds)
    for kind in set(kinds):
        rest.remove(kind)
    return rest


def _shuffled(rng: random.Random, kinds: Sequence[str]) -> list[str]:
    return rng.sample(sorted(kinds), len(kinds))


def _intent(rng: random.Random, kind: str, *, calm: bool) -> Intent:
    moment = Moment.CALM if calm else rng.choice(_MOMENTS)
    delay_s = {Moment.CALM: rng.uniform(*_CALM_DELAY_S), Moment.SOON: rng.uniform(*_SOON_DELAY_S)}
    return Intent(
        kind=kind,
        moment=moment,
        delay_s=delay_s.get(moment, 0.0),
        pick=rng.random(),
        again=rng.random(),
        long=rng.random() < 0.6,
    )


BURST = 3
"""Faults that may be open. More of them without a completed step would rightly end a job for lack of progress."""


def allows(endangered: Iterable[frozenset[str]], more: frozenset[str], *, losses_at_once: int) -> bool:
    """`endangered` are the nodes whose copies each open fault may destroy, `more` those of the next fault."""
    active = list(endangered)
    return len(active) < BURST and len(more.union(*active)) <= losses_at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    step_pause_s: float  # added to each step, so that a fault can be injected within one
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the job; the others have their defaults
    hangs_s: float  # a rank that is stopped for so long is noticed
    one_by_one: bool = False
    """Each fault comes in a calm moment and lasts until the job trains without what it hit."""

    disk_s: float | None = None
    """The time that a fault of the disk lasts; None means seconds, as drawn."""

    @property
    def holders(self) -> int:
        return int(self.settings.get("holders", JobConfig().holders))

    @property
    def dwell_s(self) -> float | None:
        """The least time that a change of protection stays; None means that protection stays as it is."""
        return self.settings.get("protect_dwell_s")

    @property
    def _node_timeout_s(self) -> float:
        return float(self.settings.get("node_timeout_s", JobConfig().node_timeout_s))

    @property
    def unnoticed_s(self) -> float:
        return self._node_timeout_s / 4

    @property
    def noticed_s(self) -> float:
        return 2 * self._node_timeout_s


CROWDED = Timing(
    step_pause_s=0.25,
    hangs_s=20.0,
    settings={
        "holders": 2,
        "overhead_budget": 0.0,
        "node_timeout_s": 4.0,
        "hang_timeout_s": 10.0,
        "unwind_timeout_s": 6.0,
        "connect_timeout_s": 40.0,
        "prepare_timeout_s": 60.0,
        "isolation_timeout_s": 60.0,
    },
)
ADAPTIVE = replace(
    CROWDED,
    settings={**CROWDED.settings, "protect_at_most": "copies=3", "evict_ill": True, "protect_dwell_s": 60.0},
)
"""Protection follows the health of nodes, ten times as fast as by default: there are decisions within minutes."""
ONE_BY_ONE = Timing(step_pause_s=1.0, hangs_s=90.0, one_by_one=True)
"""Default settings and steps of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosJob:
    name: str
    nodes: int
    nproc_per_node: int
    spares: int
    standby_coordinators: int

    @property
    def losses_at_once(self) -> int:
        """Nodes that may be lost before copies are complete again: each rank is on three nodes, and coordinators that
        need a majority keep more than half of the nodes."""
        return 2

    def config(self, host: str, timing: Timing, health_root: str = "/") -> JobConfig:
        return JobConfig(
            nodes=self.nodes,
            nproc_per_node=self.nproc_per_node,
            spares=self.spares,
            standby_coordinators=self.standby_coordinators,
            host=host,
            health_root=health_root,
            log_format="json",  # each event is said, too
            **timing.settings,
        ).checked()

    def undisturbed(self) -> JobConfig:
        return JobConfig(nodes=self.nodes, nproc_per_node=self.nproc_per_node, capture_every=1000).checked()

    def arguments(self, stop: Path) -> list[str]:
        return ["--layout", self.name, "--steps", str(_STEPS), "--stop", str(stop), "--journal", *_MODEL, *_NOISE]


JOBS = {
    "fsdp2": ChaosJob(name="fsdp2", nodes=5, nproc_per_node=1, spares=2, standby_coordinators=1),
    "3d": ChaosJob(name="3d", nodes=4, nproc_per_node=2, spares=1, standby_coordinators=0),
}
"""The first job has a standby coordinator; in the second one the only coordinator is started again."""
