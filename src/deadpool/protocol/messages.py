"""Every message between coordinator, agents and trainers. Values only; wire/ turns them into bytes.

A message that depends on who holds which rank carries the generation it was said in, and whoever receives one of an
older generation drops it at the door. Three conversations, in the order in which a recovery speaks them:

    agent -> coordinator    Join TakeoverReport Heartbeat Trainers TrainerLost Recording Sealed Missed Stored Durable
                            FenceAck Spoilt PlanAck Prepared Connected Finished Ended Standing Leave Salvaged Report
    coordinator -> agent    Welcome Refused Pulse Recording Rehearse Fence Plan Connect Go Permit Release Stand Proceed
                            Spoilt Salvage Shutdown (each in an Order, which names the term), Injection
    agent <-> trainer       TrainerHello Recording Rehearse Seat Attach Detach Grant Halt Arriving Restore Connect Go
                            Final Reschedule Stand Proceed Release End Injection
                            Declare Captured Missed Parked Halted Prepared Connected Stepped Paused Standing Finished
                            Report Failed DeviceLost Hung Injected
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.quorum import Changes, Footing, Promise, Seated
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal
from deadpool.protocol.topology import Address, Layout, Schedule

# --- values inside messages ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRef:
    """A slot of the node's arena: which segment, which place in it."""

    segment: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerInfo:
    """What a coordinator needs to know of a trainer process to judge how soon it could take a rank."""

    trainer: str
    state: str  # starting | idle | rehearsing | parked | seated
    rank: int | None  # held if seated, rehearsed if rehearsing or parked


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A sealed snapshot in some node's arena. The seal is the rank's own, wherever the copy lies."""

    seal: Seal
    geometry: Geometry
    peers: tuple[int, ...] = ()  # ranks that hold the replica region of this rank identically


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What a trainer that has come to rest holds in its device memory."""

    rank: int
    version: Version | None
    clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All state a node has, frozen when it acknowledged a fence."""

    live: tuple[Live, ...] = ()
    own: tuple[Copy, ...] = ()
    held: tuple[Copy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A node from which regions of a snapshot can be pulled, and under which rank and version it keeps them."""

    node: str
    address: Address
    rank: int
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """One snapshot a newcomer's node has to pull. Each group of sources gives a part; any source of a group will do."""

    copy: Copy
    groups: tuple[tuple[Source, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """What one node has to do for one rank it seats. `resume` in the node's own arena or pulled, unless kept live."""

    rank: int
    keep: bool  # the trainer stands clean at the resume version: its device memory is not touched
    fetch: tuple[Fetch, ...] = ()  # resume first, then the floor
    pushes: tuple[tuple[str, Version], ...] = ()  # copies that holders lack: floor first


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    node: str
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """Keep `watermark` and everything numbered from `keep_from` on; the rest may be overwritten."""

    generation: Generation
    watermark: Version | None
    keep_from: int
    schedule: Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What collectives gave a rank before its loop and, if `complete`, in its first step: whoever rehearses it alone
    is given the same. Of an older `start` they are void. A fence does not keep them back: they are no state."""

    rank: int
    start: Generation  # in which the script began at its first line
    complete: bool
    book: bytes  # read by trainers only; empty: nothing yet

    @property
    def is_void(self) -> bool:
        """The rank has not come to its loop in this start of the script. A book in which nothing stands has bytes."""
        return not self.book and not self.complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What capturing every so many steps costs a rank, as medians of the last few. None: not measured often enough."""

    rank: int
    every: int  # the interval under which it was measured
    step_s: float
    stall_s: float | None  # per capture; of one that was given up, what it would have been
    commit_s: float | None  # from the end of a step to the news that its version is committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a rank works at a step, as a median of late. All ranks' steps take the same time: they wait for the
    slowest, and that waiting is what is left out here."""

    rank: int
    step_s: float
    own_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the coordinator decides for the whole job and every agent obeys."""

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


# --- agent -> coordinator --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    node: str
    incarnation: str
    data: Address
    spare: bool
    rack: str | None = None  # None: a rack of its own
    footing: Footing = field(default_factory=Footing)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverReport:
    """The answer to a Welcome of somebody who was elsewhere: all that a coordinator has to know of this node and has
    not seen for itself. Whoever gives it has promised `term` and obeys no lower one from here on."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    generation: Generation
    steps: tuple[tuple[int, int], ...]  # of ranks in their loop; 0: this process has completed none yet
    paused: tuple[tuple[int, str], ...] = ()  # (rank, why no step is to be expected of it for now)
    costs: tuple[Costs, ...] = ()
    efforts: tuple[Effort, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainers:
    """The node's trainers changed state."""

    trainers: tuple[TrainerInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLost:
    """A trainer ended that should not have. One that held no rank is of no generation: a spare that joined in the
    middle of one has not heard of it."""

    generation: Generation | None
    trainer: str
    rank: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    generation: Generation
    copy: Copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """This rank has no copy of a scheduled version and never will."""

    generation: Generation
    rank: int
    number: int
    reason: str
    stall_s: float | None = None  # given up for want of time: how long the step would have waited, by estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Said by the holder: it has verified and sealed another node's snapshot."""

    generation: Generation
    rank: int
    version: Version
    bytes_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAck:
    generation: Generation
    inventory: Inventory
    hung: tuple[tuple[int, str], ...] = ()  # (rank, how it was found): did not come to rest and was ended


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAck:
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The rank's trainer is at rest with the resume version loaded; `store` is its rendezvous server.

    `agreement` says what its frameworks have agreed on with their peers in earlier steps.
    """

    generation: Generation
    rank: int
    store: Address
    agreement: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    generation: Generation
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The rank has completed its last step; it stays in its loop until every rank has."""

    generation: Generation
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The rank's process is gone and should be: it had been released, or its script never asked for protection."""

    generation: Generation
    rank: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """The script has saved a checkpoint of its own of so many completed steps: there is something to restart from.
    Said by a trainer, and again by its agent to every coordinator."""

    step: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoilt:
    """A copy is not as it was sealed. Of trainer and agent: their node's own; it counts as lost from here on."""

    generation: Generation
    node: str
    rank: int
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """The answer to Salvage."""

    generation: Generation
    ranks: tuple[int, ...]
    folder: str
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The rank has come to the boundary of this version and begins no step before it is told. What it captured of it
    was declared before."""

    generation: Generation
    rank: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Somebody wants this node to end. It stays until its ranks run elsewhere and its copies are needed no more."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """This node hears nothing from the coordinator and looks for another one: the end of the link is not its own end,
    its trainers go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a node says about itself for people to read: process ids, bytes in its arena, bandwidth reached."""

    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Event records on their way to the job's event log."""

    records: tuple[dict[str, Any], ...]


# --- coordinator -> agent --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Also the question whether the node will follow `by` in this term."""

    term: int
    settings: Settings
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The answer to a heartbeat: the coordinator is there, and in office."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearse:
    """Run the script under fake groups as `rank`; also the hint, at a fence, which rank a spare is about to take."""

    generation: Generation
    trainer: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    generation: Generation
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One node's part of the plan. `resume` None: nothing was ever sealed, the script starts from its first line.

    With `as_of` nothing changes for the node: its orders, holders and what it holds are those of that plan, with every
    rank kept, and are not said again.
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
    changes: Changes = field(default_factory=Changes)  # by this plan, for all nodes
    quarantined: bool = False  # the node fails again and again; it says so to whoever coordinates next

    def filled_in(self, before: Plan | None) -> Plan:
        """With what it leaves out; `before` is the last plan that the node has carried out."""
        if self.as_of is None:
            return self
        assert before is not None and before.generation == self.as_of, (self, before)
        orders = tuple(RankOrder(rank=order.rank, keep=True) for order in before.orders)
        return replace(self, as_of=None, orders=orders, holders=before.holders, held=before.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """All old groups are gone and everybody is at rest: make the new ones, meeting at `store`.

    Not `agreed`: some rank's frameworks have agreed on something else than the others', so all forget it.
    """

    generation: Generation
    store: Address
    agreed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    generation: Generation
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Every rank has completed its last step: nobody will have to redo anything."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """The job cannot go on: write these ranks' copies of the version to disk, and say where they are."""

    generation: Generation
    version: Version
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Every rank captures this version, scheduled or not, and stops there. Whoever is past it stops at the next one
    that it comes to, says which, and is told anew."""

    generation: Generation
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """Nobody has to stand any more."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    reason: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a coordinator says, and in which term: who has promised a higher one refuses it at the door."""

    term: int
    message: (
        Welcome | Refused | Pulse | Recording | Rehearse | Fence | Plan | Connect | Go | Permit | Release | Spoilt
        | Salvage | Shutdown | Stand | Proceed
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """An injected fault: `signal` to one trainer, or to the whole node. Cores do not know of it.

    `at` None: now. Else at that moment (deadpool.fault_orders) of step or version `step`, by whoever reaches it first.
    """

    signal: int
    rank: int | None
    at: str | None = None
    step: int | None = None


# --- a command <-> coordinator ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    what: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    body: dict[str, Any]
    error: str | None = None


# --- agent -> trainer ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Take this rank. `resume` None: run the script under real groups; else under fake ones until restored."""

    generation: Generation
    cause: str
    rank: int
    resume: Version | None
    schedule: Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """A segment of the arena; its file descriptor travels beside this message."""

    segment: int
    geometry: Geometry
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """The agent has given the segment up: its memory comes back when the trainer lets go of it too."""

    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The trainer owns this slot until it says Captured or Missed, or unwinds."""

    generation: Generation
    slot: SlotRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """The fence, as the trainer hears it: abort every group and come to rest at the step boundary."""

    generation: Generation
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arriving:
    """The resume version is on its way into `slot`; Restore follows when it is there and as sealed. Whoever loads from
    it meanwhile gives up what it stood at, and has nothing before Restore. No promise: a fence may come instead."""

    generation: Generation
    slot: SlotRef
    seal: Seal


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Stand at `version`. `slot` None: the live state is clean and stays."""

    generation: Generation
    version: Version
    slot: SlotRef | None
    schedule: Schedule
    capture: bool  # this rank has no sealed copy of the resume version: capture it again after Go


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """The watermark moved: steps below `number` will never be computed again."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reschedule:
    """Versions from `schedule.start` on are captured by it. If that is past already: who heard late says Missed."""

    generation: Generation
    schedule: Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    reason: str


# --- trainer -> agent ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerHello:
    trainer: str
    pid: int
    store: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Declare:
    """The trainer's state has this geometry from now on; it wants slots for it."""

    geometry: Geometry
    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    generation: Generation
    version: Version
    slot: SlotRef
    record_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Built and warm. `geometry`: room for such a snapshot can be made before it is needed."""

    rank: int
    geometry: Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """At rest, capture threads joined. What it holds in slots that it never declared captured is lost."""

    generation: Generation
    live: Live


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    generation: Generation
    number: int
    step_s: float = 0.0
    stall_s: float = 0.0  # that captures cost it, by waits and by traffic, as far as is known by now
    copy_s: float | None = None  # that a capture took; None: none has become known since the last step
    captured: int | None = None  # the version that was; None: the one that this step began with
    waited_s: float | None = None  # for other ranks, by estimate, since the last step was told; None: not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """The script does something that takes long on purpose. None: it goes on with its steps."""

    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The user's script raised; the process ends after this."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLost:
    """Nothing can run on this process's device any more; the process ends after this."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """Said by the watch beside it: the main thread does not come back from an abort; the process ends after this."""

    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """The last word of a trainer that hits itself; the rest of a node is its agent's to inject. Not `hit`: the
    step or version is past, and the moment did not come in it."""

    injection: Injection
    hit: bool


ALL: tuple[type, ...] = (
    Address, Answer, Arriving, Ask, Attach, Captured, Changes, Connect, Connected, Copy, Costs, Declare, Detach,
    DeviceLost, Digest, Durable, Effort, End, Ended, Extent, Facts, Failed, Fence, FenceAck, Fetch, Final, Finished,
    Footing, Generation, Geometry, Go, Grant, Halt, Halted, Heartbeat, Holder, Hung, Inventory, Join, Layout, Leave,
    Live, Missed, Order, Parked, Parting, Paused, Permit, Plan, PlanAck, Prepared, Proceed, Promise, Recording, Pulse,
    RankOrder, Refused, Rehearse, Release, Report, Reschedule, Restore, Salvage, Salvaged, Schedule, Seal, Sealed, Seat,
    Seated, Settings, Shutdown, SlotRef, Source, Spoilt, Injected, Stand, Standing, Stepped, Stored, Injection, TakeoverReport,
    TrainerHello, TrainerInfo, TrainerLost, Trainers, Version, Welcome,
)  # fmt: skip
"""What may travel, and nothing else."""
