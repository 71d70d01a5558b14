"""What each node has to do in the next generation, and the values that a plan is made of."""

from __future__ import annotations

from msgspec.structs import replace

from deadpool.protocol.coding import CodingGroup, NodeGroup, Scheme
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.inventory_batches import Copy
from deadpool.protocol.messages.copies import Permit
from deadpool.protocol.quorum import Changes
from deadpool.protocol.structs import Message, Value
from deadpool.protocol.topology import Address


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

    group: CodingGroup
    member: int  # whose snapshot is lost
    data: tuple[Block, ...]
    parity: tuple[Block, ...]


class Fetch(Value, frozen=True, kw_only=True):
    """One snapshot that a newcomer's node has to pull. Every group of sources supplies one part of it, and each source
    of a group has the whole part, so that the next one can be tried when one fails."""

    copy: Copy
    groups: tuple[tuple[Source, ...], ...]
    rebuild: Rebuild | None = None  # no node has the record and the unique part: they are decoded
    checkpoint: str = ""  # the durable checkpoint that has the whole snapshot; then there are no groups


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
