"""Every message between coordinator, agents and trainers. Values only; wire/ turns them into bytes.

A message that depends on the seating of ranks carries the generation in which it was sent. Its receiver drops it before
anything else is done with it if that generation is over. There are three conversations, in the order of a recovery:

    agent -> coordinator    Join TakeoverReport Heartbeat Trainers TrainerLost Recording Sealed Missed Stored Durable
                            FenceAck Spoilt PlanAck Prepared Connected Probed Finished Ended Standing Leave Salvaged
                            CheckpointPart CheckpointDone Report
    coordinator -> agent    Welcome JoinRefused Alive Recording Rehearse Fence Plan Connect Go Permit Probe Release
                            Stand Proceed Spoilt Salvage WriteCheckpoint FinishCheckpoint AbandonCheckpoint Shutdown
                            (each in an Order, which names the term), Injection
    agent <-> trainer       TrainerHello Settings Recording Rehearse Seat Attach Detach Grant Halt Arriving Restore
                            Connect Go Final Reschedule Stand Proceed Release End Injection
                            Declare Captured Missed Parked Halted Prepared Connected Stepped Paused Waits Standing
                            Finished Report Failed DeviceLost Hung Injected
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from deadpool.protocol.checkpoint import DurableSettings
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.inventory_batches import Copies as Copies
from deadpool.protocol.inventory_batches import Copy as Copy
from deadpool.protocol.inventory_batches import Inventory as Inventory
from deadpool.protocol.inventory_batches import Live as Live
from deadpool.protocol.inventory_batches import Lives as Lives
from deadpool.protocol.quorum import Changes, Footing
from deadpool.protocol.seal import Geometry, Seal
from deadpool.protocol.structs import FreeFormMessage, Message, Value
from deadpool.protocol.topology import Address, Layout, Schedule

# --- values inside messages ------------------------------------------------------------------------------------------


class SlotRef(Value, frozen=True, kw_only=True):
    """A slot of the node's arena, by its segment and its place in the segment."""

    segment: int
    index: int


class TrainerInfo(Value, frozen=True, kw_only=True):
    """What the coordinator has to know about a trainer process to judge how soon it could take a rank."""

    trainer: str
    state: str  # starting | idle | rehearsing | parked | seated
    rank: int | None  # held if seated, rehearsed if rehearsing or parked


class Source(Value, frozen=True, kw_only=True):
    """A node that has regions of a snapshot to be pulled, and the rank under which it keeps them."""

    node: str
    address: Address
    rank: int
    regions: tuple[str, ...]


class Fetch(Value, frozen=True, kw_only=True):
    """One snapshot that a newcomer's node has to pull. Every group of sources supplies one part of it, and each source
    of a group has the whole part, so that the next one can be tried when one fails."""

    copy: Copy
    groups: tuple[tuple[Source, ...], ...]
    checkpoint: str = ""  # the durable checkpoint that has the whole snapshot; then there are no groups


class RankOrder(Value, frozen=True, kw_only=True):
    """What one node has to do for one rank that it seats. Unless the rank keeps its live state, the node has the resume
    version in its own arena or fetches it."""

    rank: int
    keep: bool  # the trainer stands clean at the resume version: its device memory is not touched
    fetch: tuple[Fetch, ...] = ()  # resume first, then the floor
    pushes: tuple[tuple[str, Version], ...] = ()  # copies that holders lack: floor first


class Holder(Value, frozen=True, kw_only=True):
    """A node that keeps copies of this node's snapshots, and where it takes them."""

    node: str
    address: Address


class Peer(Value, frozen=True, kw_only=True):
    """Another node, and where its data plane listens."""

    node: str
    address: Address


class Permit(Message, frozen=True, kw_only=True):
    """The node keeps `watermark` and every version numbered from `keep_from` on. It may overwrite the rest."""

    generation: Generation
    watermark: Version | None
    keep_from: int
    schedule: Schedule


class Recording(Message, frozen=True, kw_only=True):
    """The results that collectives gave a rank before its loop and, if `complete`, in its first step.

    A spare that rehearses the rank alone is given the same results. They are void for a script that was started again
    after `start`. A fence does not hold them back, because they are no state of the job.
    """

    rank: int
    start: Generation  # in which the script began at its first line
    complete: bool
    book: bytes  # read by trainers only; empty: nothing yet

    @property
    def is_void(self) -> bool:
        """The rank has not come to its loop in this start of the script. A book in which nothing stands has bytes."""
        return not self.book and not self.complete


class Overhead(Value, frozen=True, kw_only=True):
    """What protection costs, as a share of the step time, measured in the running job."""

    share: float
    error: float  # to either side: the 95 % confidence interval
    count: int  # of comparisons

    @property
    def at_least(self) -> float:
        return max(0.0, self.share - self.error)

    @property
    def at_most(self) -> float:
        return max(0.0, self.share + self.error)


class CaptureCostReport(Value, frozen=True, kw_only=True):
    """What capturing every so many steps costs a rank, as medians of the latest captures. None means that too few were
    measured."""

    rank: int
    every: int  # the interval under which it was measured
    step_s: float
    stall_s: float | None  # per capture; of one that was given up, what it would have been
    commit_s: float | None  # from the end of a step to the news that its version is committed
    overhead: Overhead | None = None


class WorkTime(Value, frozen=True, kw_only=True):
    """How long a rank works at a step, as a median of the latest steps. The time it waits for other ranks is left out:
    with it all ranks' steps would take equally long."""

    rank: int
    step_s: float
    own_s: float


class Settings(Message, frozen=True, kw_only=True):
    """What the coordinator decides for the whole job. Every agent obeys it and passes it on to its trainers."""

    layout: Layout
    slots: int
    heartbeat_s: float
    unwind_s: float
    in_place: str = "auto"  # whether survivors keep their processes: auto, always or never
    overhead_budget: float = 0.0  # share of the step time that captures may cost; 0: no limit
    coordinators: tuple[Address, ...] = ()  # where one may be found, in this order; more than one: they need a majority
    silence_s: float = 5.0  # of a coordinator, after which another one is looked for
    isolation_s: float = 600.0  # without any coordinator, after which a node ends its trainers
    replace_stragglers: bool = False  # a node that is slow all the time is drained without being asked
    durable: DurableSettings | None = None  # None: no checkpoints are written


# --- agent -> coordinator --------------------------------------------------------------------------------------------


class Join(Message, frozen=True, kw_only=True):
    """An agent asks a coordinator to take it into the job."""

    node: str
    incarnation: str
    data: Address
    spare: bool
    rack: str | None = None  # None: a rack of its own
    footing: Footing = Footing()


class TakeoverReport(Message, frozen=True, kw_only=True):
    """An agent's answer to the Welcome of a coordinator that it was not following: everything that this coordinator
    has to know about the node and did not see itself. With it the agent promises `term` and obeys no lower one
    afterwards."""

    term: int
    footing: Footing
    running: bool  # Go was heard of its plan, and no fence since
    resume: Version | None
    permit: Permit | None
    schedules: tuple[Schedule, ...]
    holders: tuple[str, ...]  # of what this node's ranks seal
    inventory: Inventory  # not frozen, and without live state
    trainers: tuple[TrainerInfo, ...]
    missed: tuple[int, ...] = ()  # of this generation, as far as no permit has passed them
    finished: tuple[int, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()  # rank, exit code
    lost: tuple[tuple[int, str], ...] = ()  # seats whose process is gone: rank, why


WAITS_FOR_PEERS, WAITS_FOR_DATA = "peers", "data"


class Heartbeat(Message, frozen=True, kw_only=True):
    """The node is alive, and this is how far its ranks are."""

    generation: Generation
    steps: tuple[tuple[int, int], ...]  # of ranks in their loop; 0: this process has completed none yet
    paused: tuple[tuple[int, str], ...] = ()  # (rank, why no step is to be expected of it for now)
    costs: tuple[CaptureCostReport, ...] = ()
    work_times: tuple[WorkTime, ...] = ()
    waiting: tuple[int, ...] = ()  # ranks that have waited for other ranks for a while, by their own word
    idle: tuple[int, ...] = ()  # ranks that have done nothing for a while, and have not said what they wait for


class Trainers(Message, frozen=True, kw_only=True):
    """The state of at least one of the node's trainers has changed; all of them are listed."""

    trainers: tuple[TrainerInfo, ...]


class TrainerLost(Message, frozen=True, kw_only=True):
    """A trainer ended that should not have. One that held no rank is of no generation: a spare that joined in the
    middle of one has not heard of it."""

    generation: Generation | None
    trainer: str
    rank: int | None
    reason: str


class Sealed(Message, frozen=True, kw_only=True):
    """A rank's own node has checksummed a snapshot and sealed it."""

    generation: Generation
    copy: Copy


class Missed(Message, frozen=True, kw_only=True):
    """This rank has no copy of a scheduled version and never will."""

    generation: Generation
    rank: int
    number: int
    reason: str
    stall_s: float | None = None  # given up for want of time: how long the step would have waited, by estimate


class Stored(Message, frozen=True, kw_only=True):
    """A holder has verified and sealed a copy of another node's snapshot."""

    generation: Generation
    rank: int
    version: Version
    bytes_received: int


class FenceAck(Message, frozen=True, kw_only=True):
    """The node has stopped everything of older generations. Its inventory does not change before the next plan."""

    generation: Generation
    inventory: Inventory
    hung: tuple[tuple[int, str], ...] = ()  # (rank, how it was found): did not come to rest and was ended


class PlanAck(Message, frozen=True, kw_only=True):
    """The node has taken the plan over and begins to carry it out."""

    generation: Generation


class Prepared(Message, frozen=True, kw_only=True):
    """The rank's trainer is at rest with the resume version loaded. `store` is its rendezvous server.

    `agreement` says what its frameworks have agreed on with their peers in earlier steps.
    """

    generation: Generation
    rank: int
    store: Address
    agreement: str = ""


class Connected(Message, frozen=True, kw_only=True):
    """The rank's trainer has made its new process groups."""

    generation: Generation
    rank: int


class Probed(Message, frozen=True, kw_only=True):
    """The answer to Probe: which of these nodes cannot be reached, of those that could be before."""

    generation: Generation
    number: int
    unreachable: tuple[str, ...]


class Finished(Message, frozen=True, kw_only=True):
    """The rank has completed its last step. It stays in its loop until every rank has."""

    generation: Generation
    rank: int


class Ended(Message, frozen=True, kw_only=True):
    """The rank's process has ended as it should: it had been released, or its script never asked for protection."""

    generation: Generation
    rank: int
    code: int


class Durable(Message, frozen=True, kw_only=True):
    """The script has saved a checkpoint of its own after so many completed steps, from which the job could be
    restarted. A trainer says it, and its agent repeats it to every coordinator."""

    step: int
    path: str


class Spoilt(Message, frozen=True, kw_only=True):
    """The bytes of a copy are not those that were sealed. Trainers and agents say it of their own node's copies. The
    copy counts as lost from here on."""

    generation: Generation
    node: str
    rank: int
    version: Version


class Salvaged(Message, frozen=True, kw_only=True):
    """The answer to Salvage: which ranks' copies are in `folder`, or why they are not."""

    generation: Generation
    ranks: tuple[int, ...]
    folder: str
    failure: str = ""


class CheckpointPart(Message, frozen=True, kw_only=True):
    """A node has written its ranks' parts of a checkpoint, or could not. Of no generation: the version was committed
    when the write began, and a recovery does not change that."""

    name: str
    copies: tuple[Copy, ...]
    bytes_written: int
    failure: str = ""


class CheckpointDone(Message, frozen=True, kw_only=True):
    """The manifest of a checkpoint is written, so the checkpoint is complete; or it could not be."""

    name: str
    bytes_written: int
    failure: str = ""


class Standing(Message, frozen=True, kw_only=True):
    """The rank has come to the boundary of this version and begins no step before it is told to. It has declared its
    capture of the version before."""

    generation: Generation
    rank: int
    number: int


class Leave(Message, frozen=True, kw_only=True):
    """This node was asked to end. It stays until its ranks run elsewhere and its copies are no longer needed."""

    reason: str


class Disconnecting(Message, frozen=True, kw_only=True):
    """This node hears nothing from the coordinator and looks for another one. The end of the link is not the end of the
    node: its trainers go on."""


class Facts(FreeFormMessage, frozen=True, kw_only=True):
    """What a node says about itself for people to read: process ids, bytes in its arena, bandwidth reached."""

    facts: dict[str, Any]


class Report(FreeFormMessage, frozen=True, kw_only=True):
    """Event records on their way to the job's event log."""

    records: tuple[dict[str, Any], ...]


# --- coordinator -> agent --------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, kw_only=True):
    """The coordinator takes the node in. It also asks whether the node will follow `by` in this term."""

    term: int
    settings: Settings
    by: str = ""


class Alive(Message, frozen=True, kw_only=True):
    """The answer to a heartbeat: the coordinator is there, and still leads."""


class JoinRefused(Message, frozen=True, kw_only=True):
    """The coordinator does not take the node in, and says why."""

    reason: str


class Rehearse(Message, frozen=True, kw_only=True):
    """Run the script under fake groups as `rank`. At a fence it is also the hint which rank a spare is about to
    take."""

    generation: Generation
    trainer: str
    rank: int


class Fence(Message, frozen=True, kw_only=True):
    """Older generations have ended: stop everything that belongs to them, and answer with the node's inventory."""

    generation: Generation
    cause: str


class Plan(Message, frozen=True, kw_only=True):
    """One node's part of the plan. Without `resume` nothing was ever sealed, and the script starts from its first line.

    With `as_of` nothing changes for the node: its orders, its holders and the ranks it holds are those of that plan,
    with every rank kept, and are not repeated.
    """

    generation: Generation
    cause: str
    resume: Version | None
    permit: Permit
    store_rank: int
    as_of: Generation | None = None
    orders: tuple[RankOrder, ...] = ()
    holders: tuple[Holder, ...] = ()  # of what this node's ranks seal
    held: tuple[int, ...] = ()  # ranks of other nodes whose copies come to this one
    changes: Changes = Changes()  # by this plan, for all nodes
    quarantined: bool = False  # the node fails again and again; it says so to whoever coordinates next

    def filled_in(self, before: Plan | None) -> Plan:
        """With what it leaves out; `before` is the last plan that the node has carried out."""
        if self.as_of is None:
            return self
        assert before is not None and before.generation == self.as_of, (self, before)
        orders = tuple(RankOrder(rank=order.rank, keep=True) for order in before.orders)
        return replace(self, as_of=None, orders=orders, holders=before.holders, held=before.held)


class Connect(Message, frozen=True, kw_only=True):
    """All old groups are gone and every rank is at rest: make the new groups, and meet at `store`.

    Unless `agreed`, the frameworks of some rank have agreed on something else than the others', so that all ranks
    have to forget what was agreed.
    """

    generation: Generation
    store: Address
    agreed: bool = True


class Go(Message, frozen=True, kw_only=True):
    """Every rank is connected: the generation runs from here on."""

    generation: Generation
    cause: str


class Probe(Message, frozen=True, kw_only=True):
    """Try to reach these nodes. Asked at Go, and whenever the job is late."""

    generation: Generation
    number: int
    peers: tuple[Peer, ...]


class Release(Message, frozen=True, kw_only=True):
    """Every rank has completed its last step, so no step will have to be computed again and trainers may end."""

    generation: Generation


class Salvage(Message, frozen=True, kw_only=True):
    """The job cannot go on: write these ranks' copies of the version to disk, and say where they are."""

    generation: Generation
    version: Version
    ranks: tuple[int, ...]


class WriteCheckpoint(Message, frozen=True, kw_only=True):
    """Write this node's part of the version, which is committed, to the durable checkpoint of that name."""

    generation: Generation
    name: str
    version: Version


class FinishCheckpoint(Message, frozen=True, kw_only=True):
    """Every node has written its part: write the metadata, then the manifest. `copies` are of all ranks, in order."""

    name: str
    number: int
    copies: tuple[Copy, ...]


class AbandonCheckpoint(Message, frozen=True, kw_only=True):
    """The write takes too long, or another node's part is lost: end it."""

    name: str


class Stand(Message, frozen=True, kw_only=True):
    """Every rank captures this version, scheduled or not, and stops there. A rank that is already past it stops at the
    next version it comes to and says which; it is then told again."""

    generation: Generation
    number: int


class Proceed(Message, frozen=True, kw_only=True):
    """No rank has to stand any longer."""

    generation: Generation


class Shutdown(Message, frozen=True, kw_only=True):
    """The job is over for this node: end every trainer, then the agent."""

    reason: str
    failed: bool


class Order(Message, frozen=True, kw_only=True):
    """A message of a coordinator with its term. An agent that has promised a higher term refuses it before reading
    on."""

    term: int
    message: (
        Welcome | JoinRefused | Alive | Recording | Rehearse | Fence | Plan | Connect | Go | Permit | Release | Spoilt
        | Salvage | Shutdown | Stand | Proceed | Probe | WriteCheckpoint | FinishCheckpoint | AbandonCheckpoint
    )  # fmt: skip


class Injection(Message, frozen=True, kw_only=True):
    """An injected fault: `signal` is sent to one trainer, or to the whole node. Cores do not know of it.

    Without `at` it is sent now. Otherwise it is sent at that moment (deadpool.fault_orders) of step or version `step`,
    by the first trainer that reaches it.
    """

    signal: int
    rank: int | None
    at: str | None = None
    step: int | None = None


class Examine(Message, frozen=True, kw_only=True):
    """Examine your node and say which of these peers it does not reach, for `deadpool doctor`. Cores do not know of
    it."""

    number: int
    peers: tuple[Peer, ...]


class Examined(FreeFormMessage, frozen=True, kw_only=True):
    """An agent's answer to Examine: what its doctor found, and when it was asked and answered by its own clock."""

    number: int
    body: dict[str, Any]


# --- a command <-> coordinator ---------------------------------------------------------------------------------------


class Ask(FreeFormMessage, frozen=True, kw_only=True):
    """A command line asks the coordinator for something, by name."""

    what: str
    arguments: dict[str, Any]


class Answer(FreeFormMessage, frozen=True, kw_only=True):
    """The coordinator's answer to a command line. With `error`, the request was refused."""

    body: dict[str, Any]
    error: str | None = None


# --- agent -> trainer ------------------------------------------------------------------------------------------------


class Seat(Message, frozen=True, kw_only=True):
    """Take this rank. Without `resume` the script runs under real groups, otherwise under fake ones until it is
    restored."""

    generation: Generation
    cause: str
    rank: int
    resume: Version | None
    schedule: Schedule


class Attach(Message, frozen=True, kw_only=True):
    """A segment of the arena. Its file descriptor travels beside this message."""

    segment: int
    geometry: Geometry
    count: int


class Detach(Message, frozen=True, kw_only=True):
    """The agent has given the segment up. Its memory is free when the trainer has unmapped it too."""

    segment: int


class Grant(Message, frozen=True, kw_only=True):
    """The trainer owns this slot until it says Captured or Missed, or unwinds."""

    generation: Generation
    slot: SlotRef


class Halt(Message, frozen=True, kw_only=True):
    """The fence as the trainer is told of it: abort every group and come to rest at the step boundary."""

    generation: Generation
    cause: str


class Arriving(Message, frozen=True, kw_only=True):
    """The resume version is being written into `slot`. Restore follows when it is there and as sealed.

    A trainer that loads from the slot meanwhile gives up its live state, and holds nothing valid before Restore comes.
    Nothing is promised: a fence may come instead.
    """

    generation: Generation
    slot: SlotRef
    seal: Seal


class Restore(Message, frozen=True, kw_only=True):
    """Load `version` and stand at it. Without `slot` the live state is clean and stays."""

    generation: Generation
    version: Version
    slot: SlotRef | None
    schedule: Schedule
    capture: bool  # this rank has no sealed copy of the resume version: capture it again after Go


class Final(Message, frozen=True, kw_only=True):
    """The watermark moved: steps below `number` will never be computed again."""

    number: int


class Reschedule(Message, frozen=True, kw_only=True):
    """Versions from `schedule.start` on are captured by this schedule. A trainer that is already past one of them when
    this arrives says Missed for it."""

    generation: Generation
    schedule: Schedule


class End(Message, frozen=True, kw_only=True):
    """The trainer is no longer needed: end the process."""

    reason: str


# --- trainer -> agent ------------------------------------------------------------------------------------------------


class TrainerHello(Message, frozen=True, kw_only=True):
    """A trainer process has started and names its rendezvous server."""

    trainer: str
    pid: int
    store: Address


class Declare(Message, frozen=True, kw_only=True):
    """The trainer's state has this geometry from now on, and it wants slots for it."""

    geometry: Geometry
    peers: tuple[int, ...]


class Captured(Message, frozen=True, kw_only=True):
    """A snapshot is complete in its slot. The agent owns the slot again and seals it."""

    generation: Generation
    version: Version
    slot: SlotRef
    record_bytes: int


class Parked(Message, frozen=True, kw_only=True):
    """The spare's model is built and warm. With `geometry` the agent can allocate slots before they are needed."""

    rank: int
    geometry: Geometry


class Halted(Message, frozen=True, kw_only=True):
    """The trainer is at rest and its capture threads have ended. What slots hold that it never declared captured is
    lost."""

    generation: Generation
    live: Live


class Stepped(Message, frozen=True, kw_only=True):
    """The rank has completed a step, and this is what it took."""

    generation: Generation
    number: int
    step_s: float = 0.0
    stall_s: float = 0.0  # that captures cost it, by waits and by traffic, as far as is known by now
    copy_s: float | None = None  # that a capture took; None: none has become known since the last step
    captured: int | None = None  # the version that was; None: the one that this step began with
    waited_s: float | None = None  # for other ranks, by estimate, since the last step was told; None: not measured
    cycle_s: float | None = None  # since the step before was told, with all that lies between; None: there was none


class Paused(Message, frozen=True, kw_only=True):
    """The script does something that takes long on purpose. Without a reason it goes on with its steps."""

    reason: str | None


class Waits(Message, frozen=True, kw_only=True):
    """The script has waited for a while: for other ranks, or for its data. With an empty `what` it waits no longer."""

    what: str


class Failed(Message, frozen=True, kw_only=True):
    """The user's script raised. The process ends after this."""

    error: str


class DeviceLost(Message, frozen=True, kw_only=True):
    """Nothing can run on this process's device any more. The process ends after this."""

    error: str


class Hung(Message, frozen=True, kw_only=True):
    """The main thread does not come back from an abort. The watchdog thread says it, and the process ends after
    this."""

    found: str


class Injected(Message, frozen=True, kw_only=True):
    """The last message of a trainer that sends itself the injected signal; its agent sends it to the rest of the node.
    Unless `hit`, the step or version is past, and the moment did not come in it."""

    injection: Injection
    hit: bool


ALL: tuple[type[Message], ...] = (
    AbandonCheckpoint, Alive, Answer, Arriving, Ask, Attach, Captured, CheckpointDone, CheckpointPart, Connect,
    Connected, Declare, Detach, DeviceLost, Disconnecting, Durable, End, Ended, Examine, Examined, Facts, Failed, Fence,
    FenceAck, Final, FinishCheckpoint, Finished, Go, Grant, Halt, Halted, Heartbeat, Hung, Injected, Injection, Join,
    JoinRefused, Leave, Missed, Order, Parked, Paused, Permit, Plan, PlanAck, Prepared, Probe, Probed, Proceed,
    Recording, Rehearse, Release, Report, Reschedule, Restore, Salvage, Salvaged, Sealed, Seat, Settings, Shutdown,
    Spoilt, Stand, Standing, Stepped, Stored, TakeoverReport, TrainerHello, TrainerLost, Trainers, Waits, Welcome,
    WriteCheckpoint,
)  # fmt: skip
"""What may be sent. Nothing else is made of received bytes, but for the values that these declare as fields."""
