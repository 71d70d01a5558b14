"""From what the nodes froze to who holds what next. A pure function: `plan(view)` gives a Blueprint or says why not.

Rules 13 to 17 of the protocol. The resume version is the newest for which every rank has its own seal evidence *and*
bytes; a replica can give bytes, never evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import (
    Copy,
    Fetch,
    Holder,
    Inventory,
    Permit,
    Plan,
    RankOrder,
    Source,
    TrainerInfo,
)
from deadpool.protocol.placement import NOWHERE, Placement, Rack, place
from deadpool.protocol.seal import Geometry, replica_of
from deadpool.protocol.topology import Address, Layout, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node that acknowledged the fence."""

    node: str
    data: Address
    position: int | None  # None: a spare
    trainers: tuple[TrainerInfo, ...]
    inventory: Inventory
    rack: Rack = None
    quarantined: bool = False  # it is seated only where nobody else is left
    leaving: bool = False  # it gives up its position where somebody else can take it


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A copy that would be lost with the job."""

    node: str
    rank: int
    version: Version


def what_is_left(view: View) -> tuple[Left, ...]:
    """Of the version that most ranks have, and of those the newest: one sealed copy of each rank that has one."""
    stock = _Stock(view, choose_seats(view))
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


def plan(view: View) -> Blueprint | NoPlan:
    seats = choose_seats(view)
    stock = _Stock(view, seats)
    resume = stock.newest_common()
    if resume is None and view.watermark is not None and view.committed:
        return stock.no_common_version(view.watermark)  # said before a spare is waited for: none would help
    if isinstance(seats, NoPlan):
        return seats
    return _Draft(view, seats, resume, stock).blueprint()


def choose_seats(view: View) -> tuple[str, ...] | NoPlan:
    """A node keeps its position; an empty one gets the spare that is ready soonest, then one whose rack moves least.

    A node that leaves gives its position to a spare that nobody else needs, or keeps it. One whose position is given
    away, but that has not left yet, is better than nobody.
    """
    seats: list[str | None] = [None] * view.layout.positions
    given_up: dict[int, str] = {}
    for node in view.nodes:
        if node.position is not None and node.leaving:
            given_up[node.position] = node.node
        elif node.position is not None:
            seats[node.position] = node.node
    spares = [node for node in view.nodes if node.position is None and not node.leaving]
    parting = [node for node in view.nodes if node.position is None and node.leaving]
    for position in (p for p, seat in enumerate(seats) if seat is None and p not in given_up):
        seats[position] = _take(spares or parting, view, position)
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


class _Stock:
    """Every rank's state in all frozen inventories, by rank and version.

    A node that has lost its seat, or gives it up, is a source like any other: its copies are as sealed as before. What
    its trainers hold in memory ends with them.
    """

    def __init__(self, view: View, seats: tuple[str, ...] | NoPlan) -> None:
        self.view = view
        self.live: dict[int, Version] = {}
        self.own: dict[tuple[int, Version], tuple[NodeView, Copy]] = {}
        self.held: dict[tuple[int, Version], list[tuple[NodeView, Copy]]] = {}
        self.strays: dict[tuple[int, Version], list[tuple[NodeView, Copy]]] = {}  # where the rank was seated before
        for node in view.nodes:
            self._count(node, stays=isinstance(seats, NoPlan) or not node.leaving or node.node in seats)

    def _count(self, node: NodeView, *, stays: bool) -> None:
        for live in node.inventory.live if stays else ():
            if live.clean and live.version is not None and self._sits(node, live.rank):
                self.live[live.rank] = live.version
        for copy in node.inventory.own:
            name = (copy.seal.rank, copy.seal.version)
            if self._sits(node, copy.seal.rank):
                self.own[name] = (node, copy)
            else:
                self.strays.setdefault(name, []).append((node, copy))
        for copy in node.inventory.held:
            self.held.setdefault((copy.seal.rank, copy.seal.version), []).append((node, copy))

    def _sits(self, node: NodeView, rank: int) -> bool:
        return node.position == self.view.layout.position_of(rank)

    def homes(self, rank: int, version: Version) -> list[tuple[NodeView, Copy]]:
        """Everybody who has the rank's own seal, and bytes to it."""
        name = (rank, version)
        at_home = [self.own[name]] if name in self.own else []
        return at_home + self.held.get(name, []) + self.strays.get(name, [])

    def newest_common(self) -> Version | None:
        versions = set(self.live.values()) | self.sealed_versions()
        newest_first = sorted(versions, key=lambda v: (v.number, v.born), reverse=True)
        ranks = range(self.view.layout.world_size)
        return next((v for v in newest_first if all(self.can_stand(rank, v) for rank in ranks)), None)

    def sealed_versions(self) -> set[Version]:
        return {v for _, v in (*self.own, *self.held, *self.strays)}

    def fullest_first(self, rank: int, version: Version) -> list[tuple[NodeView, Copy]]:
        """Those first that have the replica region too."""
        return sorted(self.homes(rank, version), key=lambda home: not home[1].seal.full)

    def can_stand(self, rank: int, version: Version) -> bool:
        return self.live.get(rank) == version or self.fetch(rank, version) is not None

    def fetch(self, rank: int, version: Version) -> Fetch | None:
        """Where to pull the snapshot from: its record and unique bytes, and, if absent there, a replica's bytes."""
        homes = self.homes(rank, version)
        if not homes:
            return None
        copy = homes[0][1]
        base = tuple(_source(node, rank, "record", "unique") for node, _ in homes)
        if not copy.seal.extent.replica_bytes:
            return Fetch(copy=copy, groups=(base,))
        full = [node for node, home in homes if home.seal.full]
        twins = self._twins(copy)
        replicas = [_source(node, rank, "replica") for node in full]
        replicas += [_source(node, twin.seal.rank, "replica") for node, twin in twins]
        if not replicas:
            return None
        peers = copy.peers or tuple(twin.seal.rank for _, twin in twins)
        return Fetch(copy=replace(copy, geometry=_whole(copy), peers=peers), groups=(base, tuple(replicas)))

    def _twins(self, copy: Copy) -> list[tuple[NodeView, Copy]]:
        """Other ranks' own copies with the same replica region. The digest says so: a holder need not know of peers."""
        seal = copy.seal
        others = (rank for rank in range(self.view.layout.world_size) if rank != seal.rank)
        found = [hit for rank in others for hit in self._own_copies(rank, seal.version)]
        return [(node, twin) for node, twin in found if replica_of(twin.seal) == replica_of(seal)]

    def _own_copies(self, rank: int, version: Version) -> list[tuple[NodeView, Copy]]:
        """With every region, as its trainer captured it."""
        name = (rank, version)
        return ([self.own[name]] if name in self.own else []) + self.strays.get(name, [])

    def at_home(self, rank: int, version: Version, seat: str) -> bool:
        return any(node.node == seat for node, _ in self._own_copies(rank, version))

    def holds(self, node: str, rank: int, version: Version) -> bool:
        return any(view.node == node for view, _ in self.held.get((rank, version), ()))

    def no_common_version(self, watermark: Version) -> NoPlan:
        ranks = range(self.view.layout.world_size)
        lost = tuple(rank for rank in ranks if not self.can_stand(rank, watermark))
        names = ", ".join(map(str, lost))
        return NoPlan(reason=f"every copy of version {watermark} is lost for rank {names}", ranks=lost)


def _whole(copy: Copy) -> Geometry:
    """Of a slot with room for the replica region, which a holder's slot may lack."""
    return replace(copy.geometry, replica_bytes=copy.seal.extent.replica_bytes)


def _source(node: NodeView, rank: int, *regions: str) -> Source:
    return Source(node=node.node, address=node.data, rank=rank, regions=regions)


class _Draft:
    """Writes down one plan for every node."""

    def __init__(self, view: View, seats: tuple[str, ...], resume: Version | None, stock: _Stock) -> None:
        self.view, self.seats, self.resume, self.stock = view, seats, resume, stock
        self.data = {node.node: node.data for node in view.nodes}
        self.floor = self._floor()
        racks = {node.node: node.rack for node in view.nodes}
        self.placement = place([racks[seat] for seat in seats], view.layout.holders, view.placement)

    def _floor(self) -> Version | None:
        """Rule 13. A watermark that some rank has lost is no floor: nobody could go back to it."""
        watermark = self.view.watermark
        if self.resume is None or watermark is None or watermark.number > self.resume.number:
            return self.resume
        ranks = range(self.view.layout.world_size)
        return watermark if all(self.stock.can_stand(rank, watermark) for rank in ranks) else self.resume

    def blueprint(self) -> Blueprint:
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
        survivors = {live.rank for node in self.view.nodes if node.node in self.seats for live in node.inventory.live}
        return min(survivors) if survivors and self.resume is not None else 0

    def _orders(self, node: str) -> tuple[RankOrder, ...]:
        layout = self.view.layout
        return tuple(self._order(node, rank) for p in self._positions(node) for rank in layout.ranks_at(p))

    def _positions(self, node: str) -> list[int]:
        return [p for p, seat in enumerate(self.seats) if seat == node]

    def _order(self, node: str, rank: int) -> RankOrder:
        if self.resume is None or self.floor is None:
            return RankOrder(rank=rank, keep=False)
        keep = self.stock.live.get(rank) == self.resume
        wanted = [self.floor] if keep else list(dict.fromkeys((self.resume, self.floor)))
        away = [v for v in wanted if not self.stock.at_home(rank, v, node)]
        fetch = [fetch for v in away if (fetch := self.stock.fetch(rank, v)) is not None]
        return RankOrder(rank=rank, keep=keep, fetch=tuple(fetch), pushes=self._pushes(rank))

    def _pushes(self, rank: int) -> tuple[tuple[str, Version], ...]:
        """Copies that holders lack: they died with the lost nodes, or the placement moved. Floor first: newest first
        makes an avoidable NoPlan at the next loss."""
        holders = [self.seats[p] for p in self.placement.of(self.view.layout.position_of(rank))]
        assert self.floor is not None and self.resume is not None
        versions = dict.fromkeys((self.floor, self.resume))
        return tuple(
            (holder, version)
            for version in versions
            for holder in holders
            if self.stock.fetch(rank, version) and not self.stock.holds(holder, rank, version)
        )

    def _holders(self, node: str) -> tuple[Holder, ...]:
        """Nodes that hold what this node's ranks seal."""
        names = dict.fromkeys(self.seats[h] for p in self._positions(node) for h in self.placement.of(p))
        return tuple(Holder(node=name, address=self.data[name]) for name in names)

    def _held(self, node: str) -> tuple[int, ...]:
        """Ranks whose copies this node holds."""
        owners = (owner for p in self._positions(node) for owner in self.placement.held_by(p))
        return tuple(rank for owner in owners for rank in self.view.layout.ranks_at(owner))
