"""The plan: from what the nodes froze to seats, the resume version and sources. A pure function, `plan(view)`.

It follows rule 13, a plan needs every rank's own seal, and the rules after it up to rule 17, placement by seat. The
resume version is the newest one for which every rank has its own seal as evidence, and bytes. A replica can give bytes,
and never evidence.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from deadpool.protocol.checkpoint import Checkpoint
from deadpool.protocol.coding import NodeGroup, Scheme
from deadpool.protocol.coordinator.protection.coding_groups import Rack
from deadpool.protocol.coordinator.protection.shrink import Shrunk, place_shrunk, shrink
from deadpool.protocol.coordinator.recovery.inventory_index import InventoryIndex, NodeView, VersionIndex, index_nodes
from deadpool.protocol.coordinator.recovery.placement import NO_PLACEMENT, Placement, place
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import (
    Fetch,
    Holder,
    Permit,
    Plan,
    RankOrder,
    Shares,
)
from deadpool.protocol.quorum import Changes
from deadpool.protocol.topology import Layout, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Everything that a plan may be made from. `nodes` are in order of joining, so that equal spares are taken in that
    order."""

    layout: Layout
    generation: Generation
    cause: str
    nodes: tuple[NodeView, ...]
    watermark: Version | None
    schedule: Schedule
    committed: bool = True  # False: the watermark is only where a young job resumed, and would be no loss
    placement: Placement = NO_PLACEMENT  # of the plan before
    before: GlobalPlan | None = None  # that plan, where it is known
    scheme: Scheme | None = None  # None: as many copies as the layout has holders
    extra_holders: frozenset[int] = frozenset()  # positions whose ranks get one holder more than the scheme says
    checkpoint: Checkpoint | None = None  # durable and complete: to begin from where no version is left in memory
    unread: frozenset[Fetch] = frozenset()  # what newcomers could not get from the sources that inventories name
    may_shrink: bool = False  # ranks of positions that no spare can take may be carried by others
    shares: Mapping[int, Shares] = field(default_factory=dict)  # by rank, as an earlier process of it has said


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalPlan:
    """The plan for all nodes; `parts` is what each of them is told."""

    generation: Generation
    seats: tuple[str, ...]  # the node at each position
    placement: Placement
    resume: Version | None
    permit: Permit
    store_rank: int
    parts: dict[str, Plan]
    checkpoint: str = ""  # the durable checkpoint that every rank's state comes from
    carried: dict[int, int] = field(default_factory=dict)  # positions without processes -> those that carry their ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """Why there is no plan. With `missing_nodes` a spare would help; with `ranks` only a durable checkpoint would.

    A job that never committed a version has nothing to lose: its plan is to start from its first line.
    """

    reason: str
    missing_nodes: int = 0
    ranks: tuple[int, ...] = ()
    seats: tuple[str | None, ...] = ()  # with `missing_nodes`: None where a node is missing
    why_not_shrunk: str = ""  # with `missing_nodes`, where the job may shrink


ChangesBy = Callable[[tuple[str, ...]], Changes]


def _unknown(seats: tuple[str, ...]) -> Changes:
    return Changes()


def plan(view: ClusterView, changes: ChangesBy = _unknown) -> GlobalPlan | NoPlan:
    """`changes` says what a choice of seats means for the nodes that elect the next coordinator."""
    seats, carried = _seats_or_shrunk(view)
    index = _index(view, seats, carried)
    resume = _newest_common(index, view)
    if resume is None and view.checkpoint is not None:
        resume = index.count_checkpoint(view.checkpoint, view.generation)
    if resume is None and view.watermark is not None and view.committed:
        return _no_common_version(index, view.watermark)  # found before the job waits for a spare: none would help
    if isinstance(seats, NoPlan):
        return seats
    if carried and resume is None:
        return _too_early(view)
    return _PlanBuilder(view, seats, resume, index, carried).build(changes(seats))


def _newest_common(index: InventoryIndex, view: ClusterView) -> Version | None:
    """Without what could not be had, unless that costs a committed version: then it is tried again."""
    if view.unread:
        index.leave_out(view.unread)
        found = index.newest_common()
        if found is not None and (view.watermark is None or found.number >= view.watermark.number):
            return found
        index.leave_out(frozenset())
    return index.newest_common()


def carried_by_a_plan(view: ClusterView) -> dict[int, int]:
    """The positions that a plan made now would leave without processes."""
    return _seats_or_shrunk(view)[1]


def _too_early(view: ClusterView) -> NoPlan:
    seats = choose_seats(view)
    assert isinstance(seats, NoPlan)
    return dataclasses.replace(seats, why_not_shrunk="no version is left that a carrier could begin from")


def _seats_or_shrunk(view: ClusterView) -> tuple[tuple[str, ...] | NoPlan, dict[int, int]]:
    """Rule 30, carried ranks: positions that no spare can take are carried, where that is allowed and sound."""
    seats = choose_seats(view)
    if not isinstance(seats, NoPlan) or not view.may_shrink:
        return seats, {}
    scheme = view.scheme or Scheme(copies=view.layout.holders)
    shrunk = shrink(view.layout, seats.seats, view.nodes, scheme, view.shares)
    if isinstance(shrunk, Shrunk):
        return shrunk.seats, shrunk.carried
    return dataclasses.replace(seats, why_not_shrunk=shrunk), {}


def index_inventories(view: ClusterView) -> InventoryIndex:
    return _index(view, *_seats_or_shrunk(view))


def _index(view: ClusterView, seats: tuple[str, ...] | NoPlan, carried: Mapping[int, int]) -> InventoryIndex:
    gone = frozenset() if isinstance(seats, NoPlan) else {n.node for n in view.nodes if n.leaving} - set(seats)
    if carried and not isinstance(seats, NoPlan):
        stays = {seat: position for position, seat in enumerate(seats) if position not in carried}
        gone |= {node.node for node in view.nodes if stays.get(node.node) != node.position}
    return index_nodes(view.layout, view.nodes, frozenset(gone))


def _no_common_version(index: InventoryIndex, watermark: Version) -> NoPlan:
    lost = index.ranks_that_cannot_stand(watermark)
    names = ", ".join(map(str, lost))
    return NoPlan(reason=f"every copy of version {watermark} is lost for rank {names}", ranks=lost)


def choose_seats(view: ClusterView, sitting: Mapping[int, str] | None = None) -> tuple[str, ...] | NoPlan:
    """A node keeps its position. An empty position gets the spare that is ready soonest and, among equals, the one
    whose rack moves the fewest copies.

    A node that leaves gives its position to a spare that no empty position needs, or keeps it. A node whose position is
    given away, but that has not left yet, is better than none. A recalled node gets a seat before any spare.

    `sitting`: positions of nodes that the view leaves out, because nothing moves them.
    """
    seats: list[str | None] = list(map((sitting or {}).get, range(view.layout.positions)))
    given_up: dict[int, str] = {}
    for node in view.nodes:
        if node.position is not None and node.leaving:
            given_up[node.position] = node.node
        elif node.position is not None:
            seats[node.position] = node.node
    recalled = [node for node in view.nodes if node.recalled]
    others = [node for node in view.nodes if node.position is None and not node.recalled]
    spares = [node for node in others if not node.leaving]
    parting = [node for node in others if node.leaving]
    for position in (p for p, seat in enumerate(seats) if seat is None and p not in given_up):
        seats[position] = _take(recalled or spares or parting, view, position)
    healthy = [node for node in spares if not (node.quarantined or node.looks_ill)]
    for position, stays in sorted(given_up.items()):
        seats[position] = _take(healthy, view, position) or stays
    if None in seats:
        return NoPlan(reason=_no_spare(seats), missing_nodes=seats.count(None), seats=tuple(seats))
    return tuple(seat for seat in seats if seat is not None)


def _take(spares: list[NodeView], view: ClusterView, position: int) -> str | None:
    if not spares:
        return None
    best = min(spares, key=lambda spare: _preference(spare, view, position))
    spares.remove(best)
    return best.node


def _no_spare(seats: list[str | None]) -> str:
    empty = [str(p) for p, seat in enumerate(seats) if seat is None]
    return f"no spare node left for position {', '.join(empty)}"


def _preference(
    spare: NodeView, view: ClusterView, position: int
) -> tuple[bool, bool, bool, tuple[int, int], bool, int]:
    """A node that has come back sits where it sat, if nothing else makes a difference: its copies are there."""
    was_elsewhere = not any(view.layout.position_of(copy.seal.rank) == position for copy in spare.inventory.own)
    readiness, moves = _readiness(spare, view.layout, position), _moves(spare, view, position)
    return (spare.quarantined, spare.cut_off, spare.looks_ill, readiness, was_elsewhere, moves)


def _readiness(spare: NodeView, layout: Layout, position: int) -> tuple[int, int]:
    """Fewer ranks to rehearse anew come first, then fewer processes that are still starting."""
    ranks = set(layout.ranks_at(position))
    rehearsed = {t.rank for t in spare.trainers if t.state in ("parked", "rehearsing")}
    starting = sum(t.state == "starting" for t in spare.trainers)
    return (len(ranks - rehearsed), starting)


def _moves(spare: NodeView, view: ClusterView, position: int) -> int:
    """Copies that would have to move because of the rack that this spare stands in."""
    return view.placement.would_move(position, spare.rack) if view.placement.racks else 0


class _PlanBuilder:
    """Writes the part of every node."""

    def __init__(
        self,
        view: ClusterView,
        seats: tuple[str, ...],
        resume: Version | None,
        index: InventoryIndex,
        carried: dict[int, int],
    ) -> None:
        self.view, self.seats, self.resume, self.index, self.carried = view, seats, resume, index, carried
        self.nodes = {node.node: node for node in view.nodes}
        self.floor = self._floor()
        self.scheme = view.scheme or Scheme(copies=view.layout.holders)
        self.placement = self._place([self.nodes[seat].rack for seat in seats])
        self._position = {node: position for position, node in enumerate(seats) if position not in carried}
        self._carries: dict[int, list[int]] = {}  # the positions that each position carries
        for position, carrier in carried.items():
            self._carries.setdefault(carrier, []).append(position)

    def _place(self, racks: list[Rack]) -> Placement:
        """Places copies. After a plan with carried ranks they are placed as if they had never been placed: two
        positions of one node had the same holders."""
        before = self.view.before
        if self.carried:
            return place_shrunk(racks, self.scheme, self.carried)
        was_shrunk = before is not None and bool(before.carried)
        known = NO_PLACEMENT if was_shrunk else self.view.placement
        return place(racks, self.scheme, known, self.view.extra_holders)

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
        if self.carried or (view.before is not None and view.before.carried):
            undisturbed = {}  # what a node carries is in its part
        return GlobalPlan(
            generation=view.generation,
            seats=self.seats,
            placement=self.placement,
            resume=self.resume,
            permit=common.permit,
            store_rank=common.store_rank,
            parts={
                node.node: as_before if self._stays(node, undisturbed) else self._part(node, common)
                for node in view.nodes
            },
            checkpoint=self.index.checkpoint_at(self.resume),
            carried=self.carried,
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
        """Whether the node at position `holder` has copies of these ranks, or their pieces in its parities."""
        node, group = self.seats[holder], self.placement.group_of(holder)
        if group is None:
            return index.is_held_by(node, ranks)
        member, layout = group.positions.index(holder), self.view.layout
        return all(index.has_parity(node, (group.of(rank, layout), member)) for rank in ranks)

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
        return (*own, *self._carried_orders(node, position))

    def _carried_orders(self, node: str, position: int | None) -> Iterator[RankOrder]:
        """A carried rank comes with its copies, as a newcomer's does; its record is loaded by its carrier."""
        layout = self.view.layout
        for carried in self._carries.get(position, ()) if position is not None else ():
            for rank, carrier in zip(layout.ranks_at(carried), layout.ranks_at(self.carried[carried]), strict=True):
                yield replace(self._order(node, rank), keep=False, carrier=carrier)

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
