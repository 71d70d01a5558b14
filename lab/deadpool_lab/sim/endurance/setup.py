"""What one long run is about: the job, how long each part of a recovery takes, and what breaks how often."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from deadpool.protocol.coding import Scheme

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
