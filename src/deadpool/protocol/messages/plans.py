"""Fences, plans, and the envelope of orders.

What each node has to do in the next generation, and the values that a plan is made of.

The end of a generation: every node stops, and says what it holds.

`Order`: the envelope in which a coordinator sends what it says to agents.
"""

from __future__ import annotations

from msgspec.structs import replace

from deadpool.protocol.identity import Address, Generation, Message, Value, Version
from deadpool.protocol.inventory_batches import Copy, Inventory, Live
from deadpool.protocol.messages.compiled_code import AskCode, CodeChunk, CodeList, CodeOffered
from deadpool.protocol.messages.copies import AbandonCheckpoint, CopyLost, FinishCheckpoint, Permit, WriteCheckpoint
from deadpool.protocol.messages.ending import Proceed, Release, Salvage, Shutdown, Stand
from deadpool.protocol.messages.joining import JoinRefused, Needed, Probe, Welcome
from deadpool.protocol.messages.progress import Alive
from deadpool.protocol.messages.rehearsals import Audit, AuditOver, Recording, Rehearse
from deadpool.protocol.messages.seats import Connect, Go
from deadpool.protocol.messages.step_audits import StepAudit
from deadpool.protocol.quorum import Changes
from deadpool.protocol.schemes import NodeGroup, RankGroup, Scheme


class Source(Value, frozen=True, kw_only=True):
    """A node that has regions of a snapshot to be pulled, and the rank under which it keeps them."""

    node: str
    address: Address
    rank: int
    regions: tuple[str, ...]


class Block(Value, frozen=True, kw_only=True):
    """What one member of a coding group has: its own snapshot, as it was coded, or the parity that it keeps."""

    member: int
    source: Source
    copy: Copy | None = None  # of the snapshot


class Rebuild(Value, frozen=True, kw_only=True):
    """How the lost snapshot of one rank follows from what other members of its coding group have."""

    group: RankGroup
    member: int  # whose snapshot is lost
    data: tuple[Block, ...]
    joint: tuple[Block, ...]


class Fetch(Value, frozen=True, kw_only=True):
    """One snapshot that a newcomer's node has to pull. Every group of sources supplies one part of it, and each source
    of a group has the whole part, so that the next one can be tried when one fails."""

    copy: Copy
    groups: tuple[tuple[Source, ...], ...]
    rebuild: Rebuild | None = None  # no node has the record and the unique part: they are decoded
    fallback: str = ""  # the name of a version kept outside of memory that has the whole; then there are no groups


class RankOrder(Value, frozen=True, kw_only=True):
    """What one node has to do for one rank that it seats. Unless the rank keeps its live state, the node has the resume
    version in its own arena or fetches it."""

    rank: int
    keep: bool  # the trainer stands clean at the resume version: its device memory is not touched
    fetch: tuple[Fetch, ...] = ()  # resume first, then the floor
    pushes: tuple[tuple[str, Version], ...] = ()  # copies that holders lack: floor first
    carrier: int | None = (
        None  # rule 30, carried ranks: no process takes this seat; that of this rank of the same node carries it
    )


class Holder(Value, frozen=True, kw_only=True):
    """A node that keeps copies of this node's snapshots, and where it takes them."""

    node: str
    address: Address


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
    scheme: Scheme = Scheme()
    group: NodeGroup | None = None  # in which snapshots are coded; `holders` are its other members, in its order
    changes: Changes = Changes()  # by this plan, for all nodes
    quarantined: bool = False  # the node fails again and again; it says so to whoever coordinates next

    def filled_in(self, before: Plan | None) -> Plan:
        """Returns the plan with what it leaves out; `before` is the last plan that the node has carried out."""
        if self.as_of is None:
            return self
        assert before is not None and before.generation == self.as_of, (self, before)
        orders = tuple(RankOrder(rank=order.rank, keep=True) for order in before.orders)
        return replace(self, as_of=None, orders=orders, holders=before.holders, held=before.held, group=before.group)


class Fence(Message, frozen=True, kw_only=True):
    """Older generations have ended: stop everything that belongs to them, and answer with the node's inventory."""

    generation: Generation
    cause: str


class Halt(Message, frozen=True, kw_only=True):
    """The fence as the trainer is told of it: abort every group and come to rest at the step boundary."""

    generation: Generation
    cause: str


class Halted(Message, frozen=True, kw_only=True):
    """The trainer is at rest and its capture threads have ended. What slots hold that it never declared captured is
    lost."""

    generation: Generation
    live: Live


class FenceAck(Message, frozen=True, kw_only=True):
    """The node has stopped everything of older generations. Its inventory does not change before the next plan.

    `planned` is the last plan that the node has taken over: the next one need not repeat it.
    """

    generation: Generation
    inventory: Inventory
    hung: tuple[tuple[int, str], ...] = ()  # (rank, how it was found): did not come to rest and was ended
    planned: Generation | None = None


OrderMessage = (
    Welcome | JoinRefused | Alive | Recording | Rehearse | Needed | Fence | Plan | Connect | Go | Permit | Release
    | CopyLost | Salvage | Shutdown | Stand | Proceed | Probe | WriteCheckpoint | FinishCheckpoint | AbandonCheckpoint
    | Audit | StepAudit | AuditOver | CodeOffered | AskCode | CodeList | CodeChunk
)  # fmt: skip


class Order(Message, frozen=True, kw_only=True):
    """A message of a coordinator with its term. An agent that has promised a higher term refuses it before reading
    on."""

    term: int
    message: OrderMessage
