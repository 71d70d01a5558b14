"""How far ranks are, and how well nodes are.

How far the ranks are while the job runs, and what protection costs them.

`Sign` and `Health`: how well a node is: signs of illness, and the memory that it has left. Told beside heartbeats,
when it changes.
"""

from __future__ import annotations

from msgspec.structs import replace

from deadpool.protocol.causes import Widening
from deadpool.protocol.identity import FeatureMessage, Generation, Message, Value


class Stepped(Message, frozen=True, kw_only=True):
    """The rank has completed a step, and this is what it took."""

    generation: Generation
    number: int
    step_s: float = 0.0
    stall_s: float = 0.0  # that the optimizer has waited for captures, as far as is known by now
    copy_s: float | None = None  # that a capture took; None: none has become known since the last step
    captured: int | None = None  # the version that was; None: the one that this step began with
    waited_s: float | None = None  # for other ranks, by estimate, since the last step was told; None: not measured
    cycle_s: float | None = None  # since the step before was told, with all that lies between; None: there was none


class Paused(Message, frozen=True, kw_only=True):
    """The script does something that takes long on purpose. Without a reason it goes on with its steps."""

    reason: str | None


WAITS_FOR_PEERS, WAITS_FOR_DATA = "peers", "data"


class Waits(Message, frozen=True, kw_only=True):
    """The script has waited for a while: for other ranks, or for its data. With an empty `what` it waits no longer."""

    what: str


SURELY = 1.75
"""How many times the error: 3.5 standard errors. In a model of jobs without any cost whose steps differ by 20 %, as on
a busy machine, 8 of 40 were told within 6,000 steps that captures cost more than 0.5 % where one error was enough, and
none where 1.5 was."""


class Overhead(Value, frozen=True, kw_only=True):
    """What protection costs, as a share of the step time, measured in the running job."""

    share: float
    error: float  # to either side: the 95 % confidence interval
    count: int  # of comparisons

    @property
    def at_least(self) -> float:
        return max(0.0, self.share - self.error)

    @property
    def surely(self) -> float:
        """What is certain although it is looked at again and again: of many intervals of 95 %, some lie beside the true
        share."""
        return max(0.0, self.share - SURELY * self.error)

    @property
    def at_most(self) -> float:
        return max(0.0, self.share + self.error)


class CaptureCostReport(Value, frozen=True, kw_only=True):
    """What capturing every so many steps costs a rank, by its latest captures. None means that too few were
    measured."""

    rank: int
    every: int  # the interval under which it was measured
    step_s: float
    stall_s: float | None  # the mean wait for a capture; of one that was given up, what it would have been
    commit_s: float | None  # from the end of a step to the news that its version is committed, as a median
    overhead: Overhead | None = None
    send_s: float | None = None  # that a version was on its way to one holder, as a median; None: nothing is sent
    stall_error_s: float = 0.0  # how far the mean wait may be from the true one, to either side
    commit_least_s: float | None = None  # what the median surely is not below; None: the median itself
    send_least_s: float | None = None  # likewise

    @property
    def stall_at_least_s(self) -> float:
        """What is certain of the waits: one long wait among short ones is chance."""
        return max(0.0, (self.stall_s or 0.0) - self.stall_error_s)

    @property
    def is_sent_too_slowly(self) -> bool:
        """Versions surely come faster than they can be sent, so that ever more of them would wait."""
        return self.surely.send_s is not None and self.surely.send_s > self.every * self.step_s

    @property
    def surely(self) -> CaptureCostReport:
        """The same report with what is certain in the place of medians: it widens an interval, and medians narrow
        it."""
        commit_s = self.commit_s if self.commit_least_s is None else self.commit_least_s
        send_s = self.send_s if self.send_least_s is None else self.send_least_s
        return replace(self, commit_s=commit_s, send_s=send_s, commit_least_s=None, send_least_s=None)


class SlotReport(Value, frozen=True, kw_only=True):
    """How many slots the ranks of a node have for their snapshots."""

    least: int  # that any of its ranks has
    at_most: int  # that each of them could have
    limit: Widening  # why they could not have more
    arena_bytes: int = 0  # that all copies of the node may take; 0: there is no such limit


class WorkTime(Value, frozen=True, kw_only=True):
    """How long a rank works at a step, as a median of the latest steps. The time it waits for other ranks is left out:
    with it all ranks' steps would take equally long."""

    rank: int
    step_s: float
    own_s: float


class Heartbeat(Message, frozen=True, kw_only=True):
    """The node is alive, and this is how far its ranks are."""

    generation: Generation
    steps: tuple[tuple[int, int], ...]  # of ranks in their loop; 0: this process has completed none yet
    paused: tuple[tuple[int, str], ...] = ()  # (rank, why no step is to be expected of it for now)
    costs: tuple[CaptureCostReport, ...] = ()
    slots: SlotReport | None = None  # None: as told before
    work_times: tuple[WorkTime, ...] = ()
    waiting: tuple[int, ...] = ()  # ranks that have waited for other ranks for a while, by their own word
    idle: tuple[int, ...] = ()  # ranks that have done nothing for a while, and have not said what they wait for


class Alive(Message, frozen=True, kw_only=True):
    """The answer to a heartbeat: the coordinator is there, and still leads."""


SIGNS_AT_MOST = 8
DETAIL_AT_MOST = 120
"""Characters. What a driver writes into the kernel's log may be long, and is not ours."""


class Sign(Value, frozen=True, kw_only=True):
    """Something that speaks for an illness of the node. `protocol/health.py` lists the kinds and what grades mean."""

    kind: str
    grade: int
    count: int = 1  # how often, within the window that the job watches
    detail: str = ""  # in the words of its source


class Health(FeatureMessage, frozen=True, kw_only=True):
    """The signs that a node shows now, none if it is sound. It holds in every generation."""

    signs: tuple[Sign, ...]
    memory_bytes: int = 0  # of the machine or of its cgroup; 0: not known
    available_bytes: int = 0  # of it, for more copies
    copies_bytes: int = 0  # that the node's arena takes, with the copies of others
    own_bytes: int = 0  # of these, for the copies of its own ranks
