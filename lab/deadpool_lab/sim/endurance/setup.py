"""What one long run is about.

What one long run is about: the job, how long each part of a recovery takes, and what breaks how often.

`Hit`: when something breaks, and for how long it is away. All of it follows from the seed, and none of it from the
job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from random import Random

from deadpool.protocol.schemes import Scheme

DAY_S = 86400.0
PROCESS, NODE, RACK, PLANNED = "process", "node", "rack", "planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One kind of interruption. `per_s` is the rate of one node, or of one rack where the whole rack is away."""

    name: str
    kind: str  # process: the node is usable at once; node, rack: away for a while; planned: a drain, then away
    per_s: float
    away_s: float = 0.0  # mean; how long differs exponentially


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """The durations of the parts of a recovery, in seconds."""

    detect_process_s: float
    detect_node_s: float
    unwind_s: float
    build_s: float  # a fresh process comes to its training loop
    load_s: float  # a newcomer gets its state from other nodes
    own_load_s: float  # a rank loads its own node's copy
    connect_s: float
    reprotect_s: float  # from Go until holders that lack copies, or pieces, have them
    commit_lag_s: float  # from the end of a step until its version is stored at all holders
    durable_write_s: float
    durable_read_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EnduranceSetup:
    nodes: int
    per_node: int
    spares: int
    scheme: Scheme
    nodes_per_rack: int  # 0: no two nodes share one
    racks_known: bool  # nodes tell the coordinator their rack
    step_s: float  # without protection
    overhead: float  # share of the step time
    capture_every: int
    durable_every_s: float
    spare_wait_s: float
    days: float
    durations: Durations
    outages: tuple[Outage, ...]


@dataclass(slots=True)
class Lived:
    """What a run came to."""

    seconds: float = 0.0
    useful_s: float = 0.0  # steps that count, at their unprotected time
    waiting_s: float = 0.0  # for a spare
    stopped_s: float = 0.0  # in recoveries and drains, without the waits
    redone_steps: int = 0
    recoveries: int = 0
    rehearsed: int = 0  # newcomers that had rehearsed their ranks
    from_checkpoint: int = 0
    interruptions: Counter[str] = field(default_factory=Counter)  # by name, those that hit a node that was there
    refused_drains: int = 0
    ended: str | None = None  # why the job ended before its time
    core_steps: int = 0  # inputs that the coordinator's core handled

    @property
    def goodput(self) -> float:
        return self.useful_s / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    at: float
    where: int  # which node, or which rack
    away_s: float
    nth: int  # of the outages in the setup


def hits(setup: EnduranceSetup, seed: int) -> Iterator[tuple[Hit, Outage]]:
    """Yields hits in order of time. What hits a node that is away at that time has no effect, so every node that is
    there breaks at its own constant rate."""
    streams = [_stream(setup, nth, Random(f"{seed}/{outage.name}")) for nth, outage in enumerate(setup.outages)]
    return ((hit, setup.outages[hit.nth]) for hit in merge(*streams))


def places(setup: EnduranceSetup, outage: Outage) -> int:
    nodes = setup.nodes + setup.spares
    if outage.kind != RACK:
        return nodes
    return -(-nodes // setup.nodes_per_rack) if setup.nodes_per_rack else 0


def _stream(setup: EnduranceSetup, nth: int, random: Random) -> Iterator[Hit]:
    outage, at = setup.outages[nth], 0.0
    count = places(setup, outage)
    while count and outage.per_s > 0:
        at += random.expovariate(count * outage.per_s)
        if at >= setup.days * DAY_S:
            return
        away_s = random.expovariate(1.0 / outage.away_s) if outage.away_s else 0.0
        yield Hit(at, random.randrange(count), away_s, nth)
