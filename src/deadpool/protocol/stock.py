"""Every rank's state in all frozen inventories, by version and rank. Part of the planner.

Kept by lots and not copy by copy: there may be a hundred thousand copies, and a plan looks closely at those of the lost
ranks only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from deadpool.protocol.identity import Version
from deadpool.protocol.lots import Lot, lots_of, squads_of
from deadpool.protocol.messages import Copy, Fetch, Inventory, Live, Source, TrainerInfo
from deadpool.protocol.placement import Rack
from deadpool.protocol.seal import Geometry, replica_of
from deadpool.protocol.topology import Address, Layout

LOOKED_FOR = 30
"""Positions, each by a look at everything that is held."""
NOBODY: frozenset[int] = frozenset()
TWINS_AT_MOST = 8
"""Replicas that are named as sources: any one will do, and there may be one on every node."""


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
    recalled: bool = False  # it has no seat, and without it a plan would have no majority
    leaving: bool = False  # it gives up its position where somebody else can take it


Home = tuple[NodeView, Lot]


@dataclass(slots=True)
class Book:
    """Where one version is."""

    standing: set[int] = field(default_factory=set)  # ranks that live there
    own: dict[int, Home] = field(default_factory=dict)  # at home: where the rank is seated
    at_home: dict[str, set[int]] = field(default_factory=dict)  # the same by node
    strays: dict[int, list[Home]] = field(default_factory=dict)  # where the rank was seated before
    held: list[Home] = field(default_factory=list)
    held_by: dict[str, set[int]] = field(default_factory=dict)  # the same by node
    near: dict[int, list[Home]] = field(default_factory=dict)  # of the held, by position that was asked about
    holders: dict[int, list[Home]] | None = None  # the same by rank; made when many are asked about
    twins: dict[tuple[int, int], list[tuple[int, Home]]] | None = None  # of own and strays, by replica; likewise

    @property
    def is_sealed(self) -> bool:
        return bool(self.own or self.strays or self.held)

    def count_own(self, home: Home, seats: range) -> None:
        ranks = home[1].ranks
        at_home = [rank for rank in ranks if rank in seats]
        self.own.update(dict.fromkeys(at_home, home))
        self.at_home.setdefault(home[0].node, set()).update(at_home)
        if len(at_home) < len(ranks):
            for rank in ranks:
                if rank not in seats:
                    self.strays.setdefault(rank, []).append(home)

    def count_held(self, home: Home) -> None:
        self.held.append(home)
        self.held_by.setdefault(home[0].node, set()).update(home[1].ranks)

    def rests_complete(self, node: str, ranks: range) -> bool:
        """They have their copies at home."""
        return self.at_home.get(node, NOBODY).issuperset(ranks)

    def is_held_by(self, node: str, ranks: range) -> bool:
        return self.held_by.get(node, NOBODY).issuperset(ranks)

    def own_homes(self, rank: int) -> list[Home]:
        """With every region, as its trainer captured it."""
        seated = self.own.get(rank)
        return ([seated] if seated else []) + self.strays.get(rank, [])

    def held_of(self, rank: int, layout: Layout) -> list[Home]:
        """Those of a few positions are looked for; for many a book is made."""
        if len(self.near) < LOOKED_FOR:
            return [home for home in self._held_near(rank, layout) if rank in home[1].ranks]
        if self.holders is None:
            self.holders = {}
            for home in self.held:
                for each in home[1].ranks:
                    self.holders.setdefault(each, []).append(home)
        return self.holders.get(rank, [])

    def _held_near(self, rank: int, layout: Layout) -> list[Home]:
        """Of the ranks at that position: where one of them is asked about, all will be."""
        position = layout.position_of(rank)
        if position not in self.near:
            apart = frozenset(layout.ranks_at(position)).isdisjoint
            self.near[position] = [home for home in self.held if not apart(home[1].ranks)]
        return self.near[position]

    def alike(self, replica: tuple[int, int]) -> list[tuple[int, Home]]:
        """Own copies with that replica region. The digest says so, whoever knows of peers."""
        if self.twins is None:
            self.twins = {}
            for rank in sorted(self.own.keys() | self.strays.keys()):
                for home in self.own_homes(rank):
                    self.twins.setdefault(home[1].replica_of(rank), []).append((rank, home))
        return self.twins.get(replica, [])


NO_BOOK = Book()
"""Of a version that nobody has. Nothing is written into it."""


class Stock:
    """A node that has lost its seat, or gives it up, is a source like any other: its copies are as sealed as before.
    What its trainers hold in memory ends with them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._books: dict[Version, Book] = {}
        self._last: tuple[Version | None, Book] = (None, NO_BOOK)
        self.live: dict[int, Version] = {}

    def of(self, version: Version) -> Book:
        return self._books.get(version, NO_BOOK)

    # --- counting ----------------------------------------------------------------------------------------------------

    def count(self, node: NodeView, *, stays: bool) -> None:
        """Not `stays`: its trainers will end, whatever becomes of its copies."""
        seats = self._layout.ranks_at(node.position) if node.position is not None else range(0)
        if stays:
            self._count_live(node.inventory.live, seats)
        for lot in lots_of(node.inventory.own):
            self._book(lot.version).count_own((node, lot), seats)
        for lot in lots_of(node.inventory.held):
            self._book(lot.version).count_held((node, lot))

    def _book(self, version: Version) -> Book:
        """Mostly the same as for the node before."""
        if version is not self._last[0]:
            self._last = (version, self._books.setdefault(version, Book()))
        return self._last[1]

    def _count_live(self, lives: Iterable[Live], seats: range) -> None:
        for squad in squads_of(lives):
            if squad.clean and squad.version is not None:
                ranks = [rank for rank in squad.ranks if rank in seats]
                self.live.update(dict.fromkeys(ranks, squad.version))
                self._book(squad.version).standing.update(ranks)

    # --- who has what ------------------------------------------------------------------------------------------------

    def sealed_versions(self) -> set[Version]:
        return {version for version, book in self._books.items() if book.is_sealed}

    def homes(self, rank: int, version: Version) -> list[tuple[NodeView, Copy]]:
        """Everybody who has the rank's own seal, and bytes to it."""
        book = self.of(version)
        held, own = book.held_of(rank, self._layout), book.own_homes(rank)
        ordered = own[:1] + held + own[1:] if rank in book.own else held + own
        return [(node, lot.copy(rank)) for node, lot in ordered]

    def fullest_first(self, rank: int, version: Version) -> list[tuple[NodeView, Copy]]:
        """Those first that have the replica region too."""
        return sorted(self.homes(rank, version), key=lambda home: not home[1].seal.full)

    def at_home(self, rank: int, version: Version, seat: str) -> bool:
        return any(node.node == seat for node, _ in self.of(version).own_homes(rank))

    def holds(self, node: str, rank: int, version: Version) -> bool:
        return rank in self.of(version).held_by.get(node, NOBODY)

    # --- where ranks can stand ---------------------------------------------------------------------------------------

    def newest_common(self) -> Version | None:
        newest_first = sorted(self._books, key=lambda v: (v.number, v.born), reverse=True)
        return next((version for version in newest_first if self.all_can_stand(version)), None)

    def all_can_stand(self, version: Version) -> bool:
        return not any(not self.can_stand(rank, version) for rank in self._unsure(version))

    def who_cannot_stand(self, version: Version) -> tuple[int, ...]:
        return tuple(rank for rank in self._unsure(version) if not self.can_stand(rank, version))

    def _unsure(self, version: Version) -> list[int]:
        """Who neither lives there nor has a copy of its own, with every region, at home."""
        book = self.of(version)
        return [r for r in range(self._layout.world_size) if r not in book.own and r not in book.standing]

    def can_stand(self, rank: int, version: Version) -> bool:
        return self.live.get(rank) == version or self.can_be_had(rank, version)

    def can_be_had(self, rank: int, version: Version) -> bool:
        return rank in self.of(version).own or self.fetch(rank, version) is not None

    def fetch(self, rank: int, version: Version) -> Fetch | None:
        """Where to pull the snapshot from: its record and unique bytes, and, if absent there, a replica's bytes."""
        homes = self.homes(rank, version)
        if not homes:
            return None
        copy = homes[0][1]
        base = tuple(_source(node, rank, "record", "unique") for node, _ in homes)
        if not copy.seal.extent.replica_bytes:
            return Fetch(copy=copy, groups=(base,))
        twins = self._twins_of(copy)
        replicas = [_source(node, rank, "replica") for node, home in homes if home.seal.full]
        replicas += [_source(node, twin, "replica") for node, twin in twins]
        if not replicas:
            return None
        known = next((home.peers for _, home in homes if home.peers), ())  # a holder need not know of peers
        peers = known or tuple(twin for _, twin in twins)
        return Fetch(copy=replace(copy, geometry=_whole(copy), peers=peers), groups=(base, tuple(replicas)))

    def _twins_of(self, copy: Copy) -> list[tuple[NodeView, int]]:
        """Other ranks' own copies with the same replica region."""
        alike = self.of(copy.seal.version).alike(replica_of(copy.seal))
        return [(home[0], rank) for rank, home in alike if rank != copy.seal.rank][:TWINS_AT_MOST]


def stock_of(layout: Layout, nodes: Iterable[NodeView], leaving: frozenset[str]) -> Stock:
    """`leaving`: nodes whose trainers will end."""
    stock = Stock(layout)
    for node in nodes:
        stock.count(node, stays=node.node not in leaving)
    return stock


def _whole(copy: Copy) -> Geometry:
    """Of a slot with room for the replica region, which a holder's slot may lack."""
    return replace(copy.geometry, replica_bytes=copy.seal.extent.replica_bytes)


def _source(node: NodeView, rank: int, *regions: str) -> Source:
    return Source(node=node.node, address=node.data, rank=rank, regions=regions)
