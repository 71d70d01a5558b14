"""How a node joins, leases its machine, and tells whom it reaches.

How an agent and a coordinator find each other: a node joins, a coordinator takes over, a link is given up.

`Needed` and `Unavailable`: a spare whose machine serves several jobs: it is told when it is needed, and says if
another job has the machine.

`Peer`, `Probe` and `Probed`: which nodes reach each other, where the coordinator suspects that some do not.
"""

from __future__ import annotations

from deadpool.protocol.causes import AdaptiveBounds, DurableSettings
from deadpool.protocol.identity import Address, Generation, Layout, Message, Schedule, Value, Version
from deadpool.protocol.inventory_batches import Inventory
from deadpool.protocol.messages.copies import Permit
from deadpool.protocol.messages.trainer_processes import TrainerInfo, TrainerLost
from deadpool.protocol.quorum import Footing
from deadpool.protocol.schemes import NodeGroup, Scheme


class Settings(Message, frozen=True, kw_only=True):
    """What the coordinator decides for the whole job. Every agent obeys it and passes it on to its trainers."""

    layout: Layout
    slots: int
    heartbeat_s: float
    unwind_s: float
    in_place: str = "auto"  # whether survivors keep their processes: auto, always or never
    overhead_budget: float = 0.0  # share of the step time that captures may cost; 0: no limit
    set_aside_gb: float = 0.0  # of each rank's device memory, for what is not copied when the optimizer begins
    coordinators: tuple[Address, ...] = ()  # where one may be found, in this order; more than one: they need a majority
    silence_s: float = 5.0  # of a coordinator, after which another one is looked for
    isolation_s: float = 600.0  # without any coordinator, after which a node ends its trainers
    replace_stragglers: bool = False  # a node that is slow all the time is drained without being asked
    durable: DurableSettings | None = None  # None: no checkpoints are written
    adaptive: AdaptiveBounds | None = None  # None: protection stays as it is
    on_inexact: str = "warn"  # what follows where a script is found not to be exact: warn, or stop
    on_corruption: str = "stop"  # where corruption cannot be removed: stop, or go-on; ignore: nobody looks for it
    drills: bool = False  # faults that change state may be ordered
    audit_every: int = 0  # so many steps lie between two that are computed twice and compared; 0: none is
    audit_spares_every: int = 0  # so many of these audits lie between two with a spare as the judge; 0: none has one
    audit: bool = False  # a recovery is played once, early, and what is computed again is compared
    without_spare: str = "wait"  # where no spare is left for a lost node: wait, or shrink (rule 30, carried ranks)


class Join(Message, frozen=True, kw_only=True):
    """An agent asks a coordinator to take it into the job."""

    node: str
    incarnation: str
    data: Address
    spare: bool
    rack: str | None = None  # None: a rack of its own
    footing: Footing = Footing()


class Welcome(Message, frozen=True, kw_only=True):
    """The coordinator takes the node in. It also asks whether the node will follow `by` in this term."""

    term: int
    settings: Settings
    by: str = ""


class JoinRefused(Message, frozen=True, kw_only=True):
    """The coordinator does not take the node in, and says why."""

    reason: str


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
    scheme: Scheme
    group: NodeGroup | None  # in which they are coded
    inventory: Inventory  # not frozen, and without live state
    trainers: tuple[TrainerInfo, ...]
    missed: tuple[int, ...] = ()  # of this generation, as far as no permit has passed them
    finished: tuple[int, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()  # rank, exit code
    lost: tuple[TrainerLost, ...] = ()  # of seats: what was said, whether or not there was a coordinator to hear it
    alone_s: float = 0.0  # since it lost the coordinator that it followed


class Disconnecting(Message, frozen=True, kw_only=True):
    """This node hears nothing from the coordinator and looks for another one. The end of the link is not the end of the
    node: its trainers go on."""


class Needed(Message, frozen=True, kw_only=True):
    """Sent to a spare with the fence: the plan of this generation will most likely seat it. The spare takes the lease
    of its machine and ends the work that it does while it is parked. Only the plan itself gives it a seat."""

    generation: Generation


class Unavailable(Message, frozen=True, kw_only=True):
    """The last message of a node whose machine is leased to another job."""

    reason: str


class Peer(Value, frozen=True, kw_only=True):
    """Another node, and where its data plane listens."""

    node: str
    address: Address


class Probe(Message, frozen=True, kw_only=True):
    """Try to reach these nodes. Asked at Go, and whenever the job is late."""

    generation: Generation
    number: int
    peers: tuple[Peer, ...]


class Probed(Message, frozen=True, kw_only=True):
    """The answer to Probe: which of these nodes cannot be reached, of those that could be before."""

    generation: Generation
    number: int
    unreachable: tuple[str, ...]
