"""A node that only answers: what it holds, the messages that an agent in its place would send, and when.

`Parities` is what it keeps for its coding groups: which pieces have come, and which parities are whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from deadpool.protocol.identity import Address, Generation, Layout, Version
from deadpool.protocol.inventory_batches import (
    DIGEST_BYTES,
    CopyBatch,
    JointCopy,
    LiveBatch,
    Lives,
    NodeCopies,
    SharedTraits,
)
from deadpool.protocol.messages import (
    Connect,
    Copy,
    Encoded,
    Fence,
    FenceAck,
    Go,
    Inventory,
    Join,
    NodeConnected,
    NodePrepared,
    Plan,
    Proceed,
    Rehearse,
    Sealed,
    Shutdown,
    Stand,
    Standing,
    Stored,
    TrainerInfo,
    Trainers,
)
from deadpool.protocol.schemes import NodeGroup, RankGroup
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal

if TYPE_CHECKING:
    from deadpool_lab.sim.endurance.long_run import LongRun

GEOMETRY = Geometry(record_capacity=65536, unique_bytes=10_000_000_000, replica_bytes=0)
EXTENT = Extent(record_bytes=4000, unique_bytes=GEOMETRY.unique_bytes, replica_bytes=0)


@cache
def traits(version: Version) -> SharedTraits:
    return SharedTraits(version, EXTENT, GEOMETRY, True, ())


def batches(ranks_by_version: dict[Version, tuple[int, ...]]) -> NodeCopies:
    """Copies whose digests are all zero: nobody reads them."""
    found = [
        CopyBatch(traits(version), ranks, bytes(DIGEST_BYTES * len(ranks)))
        for version, ranks in ranks_by_version.items()
        if ranks
    ]
    return NodeCopies(tuple(found))


class Parities:
    """Rule 27, parity counts when it is whole: the pieces of all other members are in it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._parts: dict[tuple[RankGroup, int, Version], set[int]] = {}  # by group, member: ranks that have come

    def fold(self, group: NodeGroup, own: int, rank: int, version: Version) -> tuple[int, ...]:
        """Takes the pieces of `rank` for the parity that the node of rank `own` keeps. Returns the ranks that are in it
        if it is whole now, and was not before."""
        coded = group.of(own, self._layout)
        others = tuple(other for other in coded.ranks if other != own)
        parts = self._parts.setdefault((coded, coded.member_of(own), version), set())
        was_whole = len(parts) == len(others)
        parts.add(rank)
        return others if len(parts) == len(others) and not was_whole else ()

    def complete(self, group: NodeGroup, ranks: tuple[int, ...], version: Version) -> list[tuple[int, ...]]:
        """Every member has sent the pieces of this version, and the parities of older ones are overwritten. Returns the
        ranks in each."""
        self._parts.clear()
        for own in ranks:
            coded = group.of(own, self._layout)
            self._parts[coded, coded.member_of(own), version] = set(coded.ranks) - {own}
        return [tuple(sorted(parts)) for parts in self._parts.values()]

    def drop_above(self, number: int) -> None:
        self._parts = {key: parts for key, parts in self._parts.items() if key[2].number <= number}

    def listed(self) -> tuple[JointCopy, ...]:
        """Lists the parities that are whole, for an inventory."""
        return tuple(
            JointCopy(
                group=group,
                member=member,
                version=version,
                digest=0,
                copies=batches({version: tuple(rank for rank in group.ranks if rank in parts)}),
            )
            for (group, member, version), parts in self._parts.items()
            if len(parts) == group.size - 1
        )


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
        return Inventory(live=live, own=own, held=batches(self.held), joint=self.parities.listed())

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


class Answers:
    def __init__(self, run: LongRun) -> None:
        self._run, self._clock, self._durations = run, run.clock, run.setup.durations
        self._together: dict[tuple[str, float], list[tuple[LightNode, Any]]] = {}

    def on_message(self, node: LightNode, message: Any) -> None:
        match message:
            case Fence(generation=generation):
                rest_s = self._durations.unwind_s if node.ranks and node.went is not None else 0.0
                self._after(rest_s, "rest", node, generation)
            case Plan():
                self._take_plan(node, message)
            case Connect(generation=generation):
                self._after(self._durations.connect_s, "connected", node, generation)
            case Go(generation=generation):
                node.went = generation
                if node.plan is not None and any(order.pushes for order in node.plan.orders):
                    self._after(self._durations.reprotect_s, "pushed", node, generation)
            case Rehearse(trainer=trainer, rank=rank):
                node.rehearsed[trainer] = ("rehearsing", rank)
                self._after(self._durations.build_s, "parked", node, (trainer, rank))
            case Stand():
                self._stand(node, message)
            case Proceed():
                self._run.training.proceed()
            case Shutdown(failed=False):
                self._after(0.0, "left", node, None)
            case _:
                pass  # nothing that takes time follows from it

    def _after(self, seconds: float, what: str, node: LightNode, about: Any) -> None:
        """Answers of many nodes that come at the same time are one event of the clock."""
        key = (what, self._clock.now + seconds)
        if key not in self._together:
            self._together[key] = []
            self._clock.after(seconds, lambda: self._give(key))
        self._together[key].append((node, about))

    def _give(self, key: tuple[str, float]) -> None:
        answer = getattr(self, f"_{key[0]}")
        for node, about in self._together.pop(key):
            if self._run.nodes.get(node.name) is node:
                answer(node, about)

    # --- fence and plan -----------------------------------------------------------------------------------------------

    def _rest(self, node: LightNode, generation: Generation) -> None:
        self._run.say(
            node,
            FenceAck(
                generation=generation, inventory=node.inventory(), planned=node.plan.generation if node.plan else None
            ),
        )

    def _take_plan(self, node: LightNode, plan: Plan) -> None:
        had = node.ranks
        plan = node.adopt(plan)
        if not had and node.ranks:
            self._seat(node)
        self._after(0.0, "planned", node, (plan, bool(had)))
        if node.ranks:
            self._after(self._prepare_s(node, plan), "prepared", node, plan)

    def _seat(self, node: LightNode) -> None:
        """Seats a node: its parked trainers take its ranks, if they have rehearsed them."""
        rehearsed = node.parked_for(node.ranks)
        self._run.lived.rehearsed += rehearsed
        node.lost = set() if rehearsed else set(node.ranks)
        node.rehearsed = {f"{node.name}.{i}": ("seated", rank) for i, rank in enumerate(node.ranks)}

    def _prepare_s(self, node: LightNode, plan: Plan) -> float:
        """A process that is gone is built first. State comes from the device, this node, others, or the store."""
        lasts, build_s = self._durations, self._durations.build_s if node.lost else 0.0
        if plan.resume is None:
            return 0.0
        fetches = [fetch for order in plan.orders for fetch in order.fetch]
        if any(fetch.fallback for fetch in fetches):
            return build_s + lasts.durable_read_s
        if fetches:
            return build_s + lasts.load_s
        return build_s + (lasts.own_load_s if node.lost or not all(order.keep for order in plan.orders) else 0.0)

    def _planned(self, node: LightNode, about: tuple[Plan, bool]) -> None:
        """A spare keeps what it has rehearsed; a node that has lost its seat starts fresh trainers."""
        _, had_seat = about
        if had_seat and not node.ranks:
            self._run.say(node, node.park())

    def _prepared(self, node: LightNode, plan: Plan) -> None:
        if node.plan is not plan or plan.generation != self._run.core.coordinator.generation:
            return  # another plan has come since
        store = Address(host=node.name, port=1)
        for copy in node.restore(plan):
            self._run.say(node, Sealed(generation=plan.generation, copy=copy))
        if node.rehearsed and node.went is None:
            self._run.say(node, node.trainers())  # they are seated now
        here = store if plan.store_rank in node.ranks else None
        self._run.say(node, NodePrepared(generation=plan.generation, ranks=tuple(node.ranks), store=here))

    def _connected(self, node: LightNode, generation: Generation) -> None:
        self._run.say(node, NodeConnected(generation=generation, ranks=tuple(node.ranks)))

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _pushed(self, node: LightNode, generation: Generation) -> None:
        if node.plan is None or generation != self._run.core.coordinator.generation:
            return
        for order in node.plan.orders:
            for name, version in order.pushes:
                holder = self._run.nodes.get(name)
                said = holder.store(order.rank, version, generation) if holder is not None else None
                if holder is not None and said is not None:
                    self._run.say(holder, said)

    def _parked(self, node: LightNode, about: tuple[str, int]) -> None:
        trainer, rank = about
        if node.rehearsed.get(trainer) == ("rehearsing", rank):
            node.rehearsed[trainer] = ("parked", rank)
            self._run.say(node, node.trainers())

    def _left(self, node: LightNode, about: None) -> None:
        self._run.on_shutdown(node)

    # --- a drain ------------------------------------------------------------------------------------------------------

    def _stand(self, node: LightNode, order: Stand) -> None:
        """Every rank stops at the version that is asked for, or at the next one that it comes to."""
        training = self._run.training
        number = order.number or training.reached() + 1
        at = max(0.0, training.stand_at(number) - self._clock.now)
        self._after(at, "standing", node, (order.generation, number, order.number == 0))

    def _standing(self, node: LightNode, about: tuple[Generation, int, bool]) -> None:
        generation, number, is_first = about
        run = self._run
        if generation != run.core.coordinator.generation or not run.training.is_running:
            return
        version = Version(generation, number)
        if not is_first:
            run.training.stopped_for_drain(number)
            node.own.add(version)
        for rank in node.ranks:
            run.say(node, Standing(generation=generation, rank=rank, number=number))
            if not is_first:
                run.say(node, Sealed(generation=generation, copy=copy_of(rank, version)))
