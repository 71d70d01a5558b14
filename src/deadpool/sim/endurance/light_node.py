"""A node that only answers: what it holds, and the messages that an agent in its place would send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.inventory_batches import DIGEST_BYTES, Copies, CopyBatch, LiveBatch, Lives, SharedTraits
from deadpool.protocol.messages import Copy, Inventory, Join, Plan, TrainerInfo, Trainers
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal
from deadpool.protocol.topology import Address

GEOMETRY = Geometry(record_capacity=65536, unique_bytes=10_000_000_000, replica_bytes=0)
EXTENT = Extent(record_bytes=4000, unique_bytes=GEOMETRY.unique_bytes, replica_bytes=0)
DIGEST = Digest(record=0, unique=0, replica=0)


@cache
def _traits(version: Version) -> SharedTraits:
    return SharedTraits(version, EXTENT, GEOMETRY, True, ())


def copy_of(rank: int, version: Version) -> Copy:
    seal = Seal(rank=rank, version=version, extent=EXTENT, digest=DIGEST, full=True)
    return Copy(seal=seal, geometry=GEOMETRY)


def _batches(ranks_by_version: dict[Version, tuple[int, ...]]) -> Copies:
    batches = [
        CopyBatch(_traits(version), ranks, bytes(DIGEST_BYTES * len(ranks)))
        for version, ranks in ranks_by_version.items()
        if ranks
    ]
    return Copies(tuple(batches))


@dataclass(slots=True)
class LightNode:
    name: str
    incarnation: str
    rack: str | None
    per_node: int
    ranks: tuple[int, ...] = ()
    lost: set[int] = field(default_factory=set)  # ranks whose process is gone
    live: Version | None = None  # where its trainers stand when they are at rest
    own: set[Version] = field(default_factory=set)
    held: dict[Version, tuple[int, ...]] = field(default_factory=dict)  # ranks of others, by version
    plan: Plan | None = None
    went: Generation | None = None  # the newest generation whose Go it has heard
    rehearsed: dict[str, tuple[str, int | None]] = field(default_factory=dict)  # trainer -> its state and rank

    def join(self, spare: bool) -> Join:
        data = Address(host=self.name, port=1)
        return Join(node=self.name, incarnation=self.incarnation, data=data, spare=spare, rack=self.rack)

    def inventory(self) -> Inventory:
        """Frozen, for a fence."""
        alive = tuple(rank for rank in self.ranks if rank not in self.lost)
        live = Lives((LiveBatch(self.live, True, alive),)) if alive and self.live is not None else Lives()
        return Inventory(live=live, own=_batches(dict.fromkeys(self.own, self.ranks)), held=_batches(self.held))

    def park(self) -> Trainers:
        """One idle trainer per seat, as an agent starts them."""
        self.rehearsed = {f"{self.name}.{i}": ("idle", None) for i in range(self.per_node)}
        return self.trainers()

    def trainers(self) -> Trainers:
        listed = (TrainerInfo(trainer=n, state=state, rank=rank) for n, (state, rank) in self.rehearsed.items())
        return Trainers(trainers=tuple(listed))

    def parked_for(self, ranks: Iterable[int]) -> bool:
        return {rank for state, rank in self.rehearsed.values() if state == "parked"}.issuperset(ranks)

    def adopt(self, plan: Plan) -> Plan:
        """What the plan says of this node, filled in. Copies above the resume version are dropped."""
        self.plan = plan = plan.filled_in(self.plan)
        before, self.ranks = self.ranks, tuple(order.rank for order in plan.orders)
        newest = plan.resume.number if plan.resume is not None else -1
        self.own = {version for version in self.own if version.number <= newest} if before == self.ranks else set()
        self.held = {version: ranks for version, ranks in self.held.items() if version.number <= newest}
        return plan

    def restore(self, plan: Plan) -> list[Copy]:
        """Its ranks stand at the resume version. Returns what was fetched for that."""
        fetched = [fetch.copy for order in plan.orders for fetch in order.fetch]
        self.own |= {copy.seal.version for copy in fetched}
        self.live = plan.resume
        self.lost.clear()
        return fetched

    def commit(self, version: Version) -> None:
        """The version is complete on every node, and those before it are overwritten."""
        self.own = {version}
        self.held = {version: self.plan.held if self.plan is not None else ()}

    def store(self, rank: int, version: Version) -> None:
        """A copy that it lacked as a holder has come."""
        ranks = self.held.get(version, ())
        self.held[version] = ranks if rank in ranks else (*ranks, rank)
