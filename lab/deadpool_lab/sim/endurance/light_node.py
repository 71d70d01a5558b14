"""A node that only answers: what it holds, and the messages that an agent in its place would send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.inventory_batches import LiveBatch, Lives
from deadpool.protocol.messages import Copy, Encoded, Inventory, Join, Plan, Stored, TrainerInfo, Trainers
from deadpool.protocol.seal import Digest, Seal
from deadpool.protocol.topology import Address, Layout
from deadpool_lab.sim.endurance.parities import EXTENT, GEOMETRY, Parities, batches

DIGEST = Digest(record=0, unique=0, replica=0)


def copy_of(rank: int, version: Version) -> Copy:
    seal = Seal(rank=rank, version=version, extent=EXTENT, digest=DIGEST, full=True)
    return Copy(seal=seal, geometry=GEOMETRY)


@dataclass(slots=True)
class LightNode:
    name: str
    incarnation: str
    rack: str | None
    layout: Layout
    ranks: tuple[int, ...] = ()
    lost: set[int] = field(default_factory=set)  # ranks whose process is gone
    live: Version | None = None  # where its trainers stand when they are at rest
    own: set[Version] = field(default_factory=set)
    held: dict[Version, tuple[int, ...]] = field(default_factory=dict)  # ranks of others, by version
    plan: Plan | None = None
    went: Generation | None = None  # the newest generation whose Go it has heard
    rehearsed: dict[str, tuple[str, int | None]] = field(default_factory=dict)  # trainer -> its state and rank
    parities: Parities = field(init=False)

    def __post_init__(self) -> None:
        self.parities = Parities(self.layout)

    def join(self, spare: bool) -> Join:
        data = Address(host=self.name, port=1)
        return Join(node=self.name, incarnation=self.incarnation, data=data, spare=spare, rack=self.rack)

    def inventory(self) -> Inventory:
        """Frozen, for a fence."""
        alive = tuple(rank for rank in self.ranks if rank not in self.lost)
        live = Lives((LiveBatch(self.live, True, alive),)) if alive and self.live is not None else Lives()
        own = batches(dict.fromkeys(self.own, self.ranks))
        return Inventory(live=live, own=own, held=batches(self.held), parities=self.parities.listed())

    def park(self) -> Trainers:
        """One idle trainer per seat, as an agent starts them."""
        self.rehearsed = {f"{self.name}.{i}": ("idle", None) for i in range(self.layout.per_node)}
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
        self.parities.drop_above(newest)
        return plan

    def restore(self, plan: Plan) -> list[Copy]:
        """Puts its ranks at the resume version, and returns what was fetched for that."""
        fetched = [fetch.copy for order in plan.orders for fetch in order.fetch]
        self.own |= {copy.seal.version for copy in fetched}
        self.live = plan.resume
        self.lost.clear()
        return fetched

    def commit(self, version: Version) -> list[Stored | Encoded]:
        """The version is complete on every node, and those before it are overwritten. Returns what it says of what it
        holds for others."""
        generation, plan = version.generation, self.plan
        self.own = {version}
        if plan is not None and plan.group is not None:
            self.held = {}
            coded = self.parities.complete(plan.group, self.ranks, version)
            return [Encoded(generation=generation, version=version, ranks=each, bytes_received=1) for each in coded]
        self.held = {version: plan.held if plan is not None else ()}
        return [
            Stored(generation=generation, rank=rank, version=version, bytes_received=1) for rank in self.held[version]
        ]

    def store(self, rank: int, version: Version, generation: Generation) -> Stored | Encoded | None:
        """What it lacked as a holder has come: a copy, or the pieces of a member. Returns what it says of it."""
        group = self.plan.group if self.plan is not None else None
        if group is not None:
            own = self.ranks[self.layout.local_rank(rank)]
            inside = self.parities.fold(group, own, rank, version)
            encoded = Encoded(generation=generation, version=version, ranks=inside, bytes_received=1)
            return encoded if inside else None
        ranks = self.held.get(version, ())
        self.held[version] = ranks if rank in ranks else (*ranks, rank)
        return Stored(generation=generation, rank=rank, version=version, bytes_received=1)
