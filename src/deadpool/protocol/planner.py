"""From what the nodes froze to who holds what next. A pure function: `plan(view)` gives a Blueprint or says why not.

Rules 13 to 17 of the protocol. The resume version is the newest for which every rank has its own seal evidence *and*
bytes; a replica can give bytes, never evidence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deadpool.protocol.footing import Changes
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.lots import InLots, Keeping, squads_of
from deadpool.protocol.messages import (
    Holder,
    Permit,
    Plan,
    RankOrder,
)
from deadpool.protocol.placement import NOWHERE, Placement, place
from deadpool.protocol.stock import NO_BOOK, Book, NodeView, Stock, stock_of
from deadpool.protocol.topology import Layout, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All a plan may be made from. `nodes` in order of joining, so that equal spares are taken in that order."""

    layout: Layout
    generation: Generation
    cause: str
    nodes: tuple[NodeView, ...]
    watermark: Version | None
    schedule: Schedule
    committed: bool = True  # False: the watermark is only where a young job resumed, nothing would be lost without it
    placement: Placement = NOWHERE  # of the plan before


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The plan for all; `part(node)` is what one node is told."""

    seats: tuple[str, ...]  # the node at each position
    placement: Placement
    resume: Version | None
    permit: Permit
    store_rank: int
    parts: dict[str, Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """Why not. With `missing_nodes` a spare would help; with `ranks` only a durable checkpoint would.

    A job that never committed a version has nothing to lose: it starts from its first line, which is a plan.
    """

    reason: str
    missing_nodes: int = 0
    ranks: tuple[int, ...] = ()


ChangesBy = Callable[[tuple[str, ...]], Changes]


def _unknown(seats: tuple[str, ...]) -> Changes:
    return Changes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A copy that would be lost with the job."""

    node: str
    rank: int
    version: Version


def what_is_left(view: View) -> tuple[Left, ...]:
    """Of the version that most ranks have, and of those the newest: one sealed copy of each rank that has one."""
    stock = _stock(view, choose_seats(view))
    ranks = range(view.layout.world_size)
    best = max(
        stock.sealed_versions(),
        key=lambda v: (sum(bool(stock.homes(r, v)) for r in ranks), v.number, v.born),
        default=None,
    )
    if best is None:
        return ()
    keepers = [(rank, homes[0][0].node) for rank in ranks if (homes := stock.fullest_first(rank, best))]
    return tuple(Left(node=node, rank=rank, version=best) for rank, node in keepers)


def plan(view: View, changes: ChangesBy = _unknown) -> Blueprint | NoPlan:
    """`changes`: what a choice of seats is for those who elect the next coordinator."""
    seats = choose_seats(view)
    stock = _stock(view, seats)
    resume = stock.newest_common()
    if resume is None and view.watermark is not None and view.committed:
        return _no_common_version(stock, view.watermark)  # said before a spare is waited for: none would help
    if isinstance(seats, NoPlan):
        return seats
    return _Draft(view, seats, resume, stock).blueprint(changes(seats))


def _stock(view: View, seats: tuple[str, ...] | NoPlan) -> Stock:
    gone = frozenset() if isinstance(seats, NoPlan) else {n.node for n in view.nodes if n.leaving} - set(seats)
    return stock_of(view.layout, view.nodes, frozenset(gone))


def _no_common_version(stock: Stock, watermark: Version) -> NoPlan:
    lost = stock.who_cannot_stand(watermark)
    names = ", ".join(map(str, lost))
    return NoPlan(reason=f"every copy of version {watermark} is lost for rank {names}", ranks=lost)


def choose_seats(view: View) -> tuple[str, ...] | NoPlan:
    """A node keeps its position; an empty one gets the spare that is ready soonest, then one whose rack moves least.

    A node that leaves gives its position to a spare that nobody else needs, or keeps it. One whose position is given
    away, but that has not left yet, is better than nobody. Whoever is recalled has a seat before any spare.
    """
    seats: list[str | None] = [None] * view.layout.positions
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
    healthy = [node for node in spares if not node.quarantined]
    for position, stays in sorted(given_up.items()):
        seats[position] = _take(healthy, view, position) or stays
    if None in seats:
        return NoPlan(reason=_no_spare(seats), missing_nodes=seats.count(None))
    return tuple(seat for seat in seats if seat is not None)


def _take(spares: list[NodeView], view: View, position: int) -> str | None:
    if not spares:
        return None
    best = min(spares, key=lambda spare: _preference(spare, view, position))
    spares.remove(best)
    return best.node


def _no_spare(seats: list[str | None]) -> str:
    empty = [str(p) for p, seat in enumerate(seats) if seat is None]
    return f"no spare node left for position {', '.join(empty)}"


def _preference(spare: NodeView, view: View, position: int) -> tuple[bool, tuple[int, int], bool, int]:
    """Who has come back sits where it sat, if nothing else makes a difference: its copies are there."""
    was_elsewhere = not any(view.layout.position_of(copy.seal.rank) == position for copy in spare.inventory.own)
    readiness, moves = _readiness(spare, view.layout, position), _moves(spare, view, position)
    return (spare.quarantined, readiness, was_elsewhere, moves)


def _readiness(spare: NodeView, layout: Layout, position: int) -> tuple[int, int]:
    """Fewer ranks to rehearse anew first, then fewer processes that are still starting."""
    ranks = set(layout.ranks_at(position))
    rehearsed = {t.rank for t in spare.trainers if t.state in ("parked", "rehearsing")}
    starting = sum(t.state == "starting" for t in spare.trainers)
    return (len(ranks - rehearsed), starting)


def _moves(spare: NodeView, view: View, position: int) -> int:
    """Copies of others that would have to move because of the rack that this spare stands in."""
    return view.placement.would_move(position, spare.rack) if view.placement.racks else 0


class _Draft:
    """Writes down one plan for every node."""

    def __init__(self, view: View, seats: tuple[str, ...], resume: Version | None, stock: Stock) -> None:
        self.view, self.seats, self.resume, self.stock = view, seats, resume, stock
        self.data = {node.node: node.data for node in view.nodes}
        self.floor = self._floor()
        racks = {node.node: node.rack for node in view.nodes}
        self.placement = place([racks[seat] for seat in seats], view.layout.holders, view.placement)
        self._position = {node: position for position, node in enumerate(seats)}
        self._kept_by: dict[int, list[int]] = {}  # position -> those whose copies come to it
        for owner, holders in enumerate(self.placement.holders):
            for holder in holders:
                self._kept_by.setdefault(holder, []).append(owner)

    def _floor(self) -> Version | None:
        """Rule 13. A watermark that some rank has lost is no floor: nobody could go back to it."""
        watermark = self.view.watermark
        if self.resume is None or watermark is None or watermark.number > self.resume.number:
            return self.resume
        return watermark if self.stock.all_can_stand(watermark) else self.resume

    def blueprint(self, changes: Changes) -> Blueprint:
        permit = self._permit()
        store_rank = self._store_rank()
        parts = {
            node.node: Plan(
                generation=self.view.generation,
                cause=self.view.cause,
                resume=self.resume,
                permit=permit,
                store_rank=store_rank,
                orders=self._orders(node.node),
                holders=self._holders(node.node),
                held=self._held(node.node),
                changes=changes,
                quarantined=node.quarantined,
            )
            for node in self.view.nodes
        }
        return Blueprint(
            seats=self.seats,
            placement=self.placement,
            resume=self.resume,
            permit=permit,
            store_rank=store_rank,
            parts=parts,
        )

    def _permit(self) -> Permit:
        """Rule 14: the resume version, if newer than the floor, is pending; everything between them is not needed."""
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
        """The rendezvous lives in a survivor; in a start from the first line everybody is new, and rank 0 will do."""
        seated = (node for node in self.view.nodes if node.node in self._position)
        squads = (squad for node in seated for squad in squads_of(node.inventory.live))
        survivor = min((min(squad.ranks) for squad in squads), default=0)
        return survivor if self.resume is not None else 0

    def _orders(self, node: str) -> Sequence[RankOrder]:
        position = self._position.get(node)
        if position is None:
            return ()
        ranks = self.view.layout.ranks_at(position)
        if self._stays_as_it_is(node, position, ranks):
            return InLots((Keeping(tuple(ranks)),))
        return tuple([self._order(node, rank) for rank in ranks])

    def _stays_as_it_is(self, node: str, position: int, ranks: range) -> bool:
        """Most nodes at most losses: nothing moves to them or from them. Looked at as a whole, for there are many."""
        if self.resume is None or self.floor is None:
            return False
        if not (self._standing.issuperset(ranks) and self._at_floor.rests_complete(node, ranks)):
            return False
        holders = [self.seats[holder] for holder in self.placement.of(position)]
        return all(book.is_held_by(holder, ranks) for book in self._wanted for holder in holders)

    @functools.cached_property
    def _standing(self) -> set[int]:
        return self.stock.of(self.resume).standing if self.resume is not None else set()

    @functools.cached_property
    def _at_floor(self) -> Book:
        return self.stock.of(self.floor) if self.floor is not None else NO_BOOK

    @functools.cached_property
    def _wanted(self) -> list[Book]:
        return [self.stock.of(version) for version in self._versions]

    @functools.cached_property
    def _versions(self) -> tuple[Version, ...]:
        """That holders have to have: the floor first."""
        assert self.floor is not None and self.resume is not None
        return (self.floor,) if self.floor == self.resume else (self.floor, self.resume)

    def _order(self, node: str, rank: int) -> RankOrder:
        if self.resume is None or self.floor is None:
            return RankOrder(rank=rank, keep=False)
        stock = self.stock
        keep = stock.live.get(rank) == self.resume
        wanted = [self.floor] if keep or self.floor == self.resume else [self.resume, self.floor]
        away = [v for v in wanted if not stock.at_home(rank, v, node)]
        fetch = [fetch for v in away if (fetch := stock.fetch(rank, v)) is not None]
        return RankOrder(rank=rank, keep=keep, fetch=tuple(fetch), pushes=self._pushes(rank))

    def _pushes(self, rank: int) -> tuple[tuple[str, Version], ...]:
        """Copies that holders lack: they died with the lost nodes, or the placement moved. Floor first: newest first
        makes an avoidable NoPlan at the next loss."""
        stock = self.stock
        holders = [self.seats[p] for p in self.placement.of(self.view.layout.position_of(rank))]
        return tuple(
            [
                (holder, version)
                for version in self._versions
                for holder in holders
                if not stock.holds(holder, rank, version) and stock.can_be_had(rank, version)
            ]
        )

    def _holders(self, node: str) -> tuple[Holder, ...]:
        """Nodes that hold what this node's ranks seal."""
        position = self._position.get(node)
        names = [self.seats[p] for p in self.placement.of(position)] if position is not None else []
        return tuple(Holder(node=name, address=self.data[name]) for name in dict.fromkeys(names))

    def _held(self, node: str) -> tuple[int, ...]:
        """Ranks whose copies this node holds."""
        position = self._position.get(node)
        owners = self._kept_by.get(position, []) if position is not None else []
        return tuple([rank for owner in owners for rank in self.view.layout.ranks_at(owner)])
