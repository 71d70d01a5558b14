"""The plan: from what the nodes froze to seats, the resume version and sources. A pure function, `plan(view)`.

It follows rule 13, a plan needs every rank's own seal, and the rules after it up to rule 17, placement by seat. The
resume version is the newest one for which every rank has its own seal as evidence, and bytes. A replica can give bytes,
and never evidence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from deadpool.protocol.coordinator.recovery.global_plan import ClusterView, GlobalPlan, NoPlan, Seats
from deadpool.protocol.coordinator.recovery.inventory_index import InventoryIndex, NodeView, VersionIndex, index_nodes
from deadpool.protocol.coordinator.recovery.seats import seats_for
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Holder, Permit, Plan, RankOrder
from deadpool.protocol.quorum import Changes
from deadpool.protocol.schemes import NodeGroup, Scheme

ChangesBy = Callable[[tuple[str, ...]], Changes]


def _unknown(seats: tuple[str, ...]) -> Changes:
    return Changes()


def plan(view: ClusterView, changes: ChangesBy = _unknown) -> GlobalPlan | NoPlan:
    """`changes` says what a choice of seats means for the nodes that elect the next coordinator."""
    seats = seats_for(view)
    index = _index(view, seats)
    resume = _newest_common(index, view)
    if resume is None and view.fallback is not None:
        resume = index.count_fallback(view.fallback, view.generation)
    if resume is None and view.watermark is not None and view.committed:
        return _no_common_version(index, view.watermark)  # found before the job waits for a spare: none would help
    if isinstance(seats, NoPlan):
        return seats
    if resume is None and (refusal := seats.refusal_without_version()) is not None:
        return refusal
    return _PlanBuilder(view, seats, resume, index).build(changes(seats.nodes))


def _newest_common(index: InventoryIndex, view: ClusterView) -> Version | None:
    """Without what could not be had, unless that costs a committed version: then it is tried again."""
    if view.unread:
        index.leave_out(view.unread)
        found = index.newest_common()
        if found is not None and (view.watermark is None or found.number >= view.watermark.number):
            return found
        index.leave_out(frozenset())
    return index.newest_common()


def index_inventories(view: ClusterView) -> InventoryIndex:
    return _index(view, seats_for(view))


def _index(view: ClusterView, seats: Seats | NoPlan) -> InventoryIndex:
    gone: set[str] = set()
    if not isinstance(seats, NoPlan):
        gone = {node.node for node in view.nodes if node.leaving} - set(seats.nodes)
        gone.update(seats.moved(view.nodes))
        if view.moves:
            sits = seats.process_positions
            gone.update(node.node for node in view.nodes if sits.get(node.node) != node.position)
    return index_nodes(view.layout, view.nodes, frozenset(gone), view.redundancy, view.void)


def _no_common_version(index: InventoryIndex, watermark: Version) -> NoPlan:
    lost = index.ranks_that_cannot_stand(watermark)
    names = ", ".join(map(str, lost))
    return NoPlan(reason=f"every copy of version {watermark} is lost for rank {names}", ranks=lost)


class _PlanBuilder:
    """Writes the part of every node."""

    def __init__(self, view: ClusterView, seats: Seats, resume: Version | None, index: InventoryIndex) -> None:
        self.view, self.resume, self.index = view, resume, index
        self.seating, self.seats = seats, seats.nodes
        self.nodes = {node.node: node for node in view.nodes}
        self.floor = self._floor()
        self.scheme = view.scheme or Scheme(copies=view.layout.holders)
        self.placement = seats.place(view, [self.nodes[seat].rack for seat in seats.nodes], self.scheme)
        self._position = seats.process_positions

    def _floor(self) -> Version | None:
        """The oldest version that the job may go back to. A watermark that some rank has lost is none (rule 13, a plan
        needs every rank's own seal)."""
        watermark = self.view.watermark
        if self.resume is None or watermark is None or watermark.number > self.resume.number:
            return self.resume
        return watermark if self.index.all_can_stand(watermark) else self.resume

    def build(self, changes: Changes) -> GlobalPlan:
        view = self.view
        common = Plan(
            generation=view.generation,
            cause=view.cause,
            resume=self.resume,
            permit=self._permit(),
            store_rank=self._store_rank(),
            changes=changes,
            scheme=self.scheme,
        )
        as_before = replace(common, as_of=view.before.generation) if view.before is not None else common
        undisturbed = self._undisturbed(view.before) if view.before is not None else {}
        return GlobalPlan(
            generation=view.generation,
            seating=self.seating,
            placement=self.placement,
            resume=self.resume,
            permit=common.permit,
            store_rank=common.store_rank,
            parts={
                node.node: as_before if self._stays(node, undisturbed) else self._part(node, common)
                for node in view.nodes
            },
            fallback=self.index.fallback_at(self.resume),
        )

    def _part(self, node: NodeView, common: Plan) -> Plan:
        return replace(
            common,
            orders=self._orders(node.node),
            holders=self._holders(node.node),
            held=self._held(node.node),
            group=self._group(node.node),
            quarantined=node.quarantined,
        )

    def _permit(self) -> Permit:
        """Rule 14, drop above the resume version: one that is newer than the floor is pending, and nothing between them
        is needed."""
        keep_from = 0
        if self.floor is not None and self.resume is not None:
            keep_from = max(self.floor.number + 1, self.resume.number)
        return Permit(
            generation=self.view.generation,
            watermark=self.floor,
            keep_from=keep_from,
            schedule=self.view.schedule,
        )

    def _store_rank(self) -> int:
        """The rendezvous is in a survivor. In a start from the first line every process is new, and rank 0 will do."""
        return next(self._survivors(), 0) if self.resume is not None else 0

    def _survivors(self) -> Iterator[int]:
        for position, seat in enumerate(self.seats):
            ranks = self.view.layout.ranks_at(position)
            alive = {rank for batch in self.nodes[seat].inventory.live.batches for rank in batch.ranks}
            yield from sorted(alive.intersection(ranks))

    # --- nodes for which nothing changes: most nodes at most losses ---------------------------------------------------

    def _undisturbed(self, before: GlobalPlan) -> dict[str, int]:
        """Nodes that sit where they sat, send copies where they sent them, and know the plan before; with positions."""
        if not (self.seating.is_full and before.seating.is_full):
            return {}  # what a node does for further ranks is in its part
        now, then = self.placement, before.placement
        disturbed = {p for p, seat in enumerate(self.seats) if not self._sat_there(seat, p, before)}
        if now is not then:
            positions = range(len(self.seats))
            disturbed.update(p for p in positions if now.of(p) != then.of(p) or now.held_by(p) != then.held_by(p))
        for position in tuple(disturbed):
            disturbed.update(now.held_by(position))
        return {seat: position for seat, position in self._position.items() if position not in disturbed}

    def _sat_there(self, seat: str, position: int, before: GlobalPlan) -> bool:
        return before.seats[position] == seat and self.nodes[seat].planned_in == before.generation

    def _stays(self, node: NodeView, undisturbed: dict[str, int]) -> bool:
        """Nothing moves to it or from it. All its ranks are looked at at once, for there are many nodes."""
        position = undisturbed.get(node.node)
        if position is None or node.quarantined or self.resume is None or self.floor is None:
            return False
        if not (self._at_resume.all_stand(position) and self._at_floor.is_whole(position)):
            return False
        ranks = self.view.layout.ranks_at(position)
        for index in self._wanted:
            for holder in self.placement.of(position):
                if not self._is_stored(index, holder, ranks):
                    return False
        return True

    def _is_stored(self, index: VersionIndex, holder: int, ranks: range) -> bool:
        """Whether the node at position `holder` has what it is to keep for these ranks."""
        return self.placement.is_stored(index, self.seats[holder], holder, ranks, self.view.layout)

    @functools.cached_property
    def _at_resume(self) -> VersionIndex:
        assert self.resume is not None
        return self.index.of(self.resume)

    @functools.cached_property
    def _at_floor(self) -> VersionIndex:
        assert self.floor is not None
        return self.index.of(self.floor)

    @functools.cached_property
    def _wanted(self) -> list[VersionIndex]:
        return [self.index.of(version) for version in self._versions]

    @functools.cached_property
    def _versions(self) -> tuple[Version, ...]:
        """Versions that holders have to have, the floor first."""
        assert self.floor is not None and self.resume is not None
        return (self.floor,) if self.floor == self.resume else (self.floor, self.resume)

    # --- all other nodes ----------------------------------------------------------------------------------------------

    def _orders(self, node: str) -> tuple[RankOrder, ...]:
        position = self._position.get(node)
        ranks = self.view.layout.ranks_at(position) if position is not None else range(0)
        own = [self._order(node, rank) for rank in ranks]
        return (*own, *self.seating.further_orders(self.view.layout, position, functools.partial(self._order, node)))

    def _order(self, node: str, rank: int) -> RankOrder:
        if self.resume is None or self.floor is None:
            return RankOrder(rank=rank, keep=False)
        index = self.index
        keep = self._at_resume.stands(rank)
        wanted = [self.floor] if keep or self.floor == self.resume else [self.resume, self.floor]
        away = [v for v in wanted if not index.at_home(rank, v, node)]
        fetch = [fetch for v in away if (fetch := index.fetch(rank, v)) is not None]
        return RankOrder(rank=rank, keep=keep, fetch=tuple(fetch), pushes=self._pushes(rank))

    def _pushes(self, rank: int) -> tuple[tuple[str, Version], ...]:
        """Copies that holders lack: they were lost with their nodes, or the placement moved. Rule 16, floor first:
        with the newest first, the next loss could leave no version that every rank has."""
        index, only = self.index, range(rank, rank + 1)
        holders = self.placement.of(self.view.layout.position_of(rank))
        return tuple(
            [
                (self.seats[holder], version)
                for version in self._versions
                for holder in holders
                if not self._is_stored(index.of(version), holder, only) and index.can_be_had(rank, version)
            ]
        )

    def _holders(self, node: str) -> tuple[Holder, ...]:
        """Nodes that hold the copies of this node's ranks."""
        position = self._position.get(node)
        names = [self.seats[p] for p in self.placement.of(position)] if position is not None else []
        return tuple(Holder(node=name, address=self.nodes[name].data) for name in dict.fromkeys(names))

    def _group(self, node: str) -> NodeGroup | None:
        position = self._position.get(node)
        return self.placement.group_of(position) if position is not None else None

    def _held(self, node: str) -> tuple[int, ...]:
        """Ranks whose copies this node holds."""
        position = self._position.get(node)
        owners = self.placement.held_by(position) if position is not None else ()
        return tuple([rank for owner in owners for rank in self.view.layout.ranks_at(owner)])
