"""Every rank's state in all frozen inventories, by version and rank. Part of the planner.

Kept by lots and not copy by copy: there may be a hundred thousand copies, and a plan looks closely at those of the lost
ranks only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from deadpool.protocol.identity import Version
from deadpool.protocol.lots import Lot, lots_of
from deadpool.protocol.messages import Copy, Fetch, Inventory, Live, Source, TrainerInfo
from deadpool.protocol.placement import Rack
from deadpool.protocol.seal import Geometry, replica_of
from deadpool.protocol.topology import Address, Layout

ASKED_WITHOUT_A_BOOK = 100
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


class Stock:
    """A node that has lost its seat, or gives it up, is a source like any other: its copies are as sealed as before.
    What its trainers hold in memory ends with them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.live: dict[int, Version] = {}
        self._standing: dict[Version, set[int]] = {}  # ranks that live there
        self.own: dict[Version, dict[int, Home]] = {}
        self._at_home: dict[tuple[str, Version], set[int]] = {}  # of the same, by node
        self._strays: dict[Version, dict[int, list[Home]]] = {}  # where the rank was seated before
        self._held: dict[Version, list[Home]] = {}
        self._asked = 0
        self._held_by: dict[tuple[str, Version], set[int]] = {}
        self._holders: dict[Version, dict[int, list[Home]]] = {}  # by rank; made when it is asked for
        self._twins: dict[Version, dict[tuple[int, int], list[tuple[int, Home]]]] = {}  # by replica; likewise

    # --- counting ----------------------------------------------------------------------------------------------------

    def count(self, node: NodeView, *, stays: bool) -> None:
        """Not `stays`: its trainers will end, whatever becomes of its copies."""
        seats = self._layout.ranks_at(node.position) if node.position is not None else range(0)
        if stays:
            self._count_live(node.inventory.live, seats)
        for lot in lots_of(node.inventory.own):
            self._count_own((node, lot), seats)
        for lot in lots_of(node.inventory.held):
            self._held.setdefault(lot.version, []).append((node, lot))
            self._held_by.setdefault((node.node, lot.version), set()).update(lot.ranks)

    def _count_live(self, lives: Iterable[Live], seats: range) -> None:
        version: Version | None = None
        standing: set[int] = set()
        for live in lives:
            if not live.clean or live.version is None or live.rank not in seats:
                continue
            if live.version is not version:
                version, standing = live.version, self._standing.setdefault(live.version, set())
            self.live[live.rank] = live.version
            standing.add(live.rank)

    def _count_own(self, home: Home, seats: range) -> None:
        lot = home[1]
        at_home = [rank for rank in lot.ranks if rank in seats]
        self.own.setdefault(lot.version, {}).update(dict.fromkeys(at_home, home))
        self._at_home.setdefault((home[0].node, lot.version), set()).update(at_home)
        if len(at_home) < len(lot.ranks):
            strays = self._strays.setdefault(lot.version, {})
            for rank in lot.ranks:
                if rank not in seats:
                    strays.setdefault(rank, []).append(home)

    # --- who has what ------------------------------------------------------------------------------------------------

    def sealed_versions(self) -> set[Version]:
        return {version for where in (self.own, self._held, self._strays) for version, homes in where.items() if homes}

    def homes(self, rank: int, version: Version) -> list[tuple[NodeView, Copy]]:
        """Everybody who has the rank's own seal, and bytes to it."""
        held = self._held_of(rank, version)
        own = self._own_homes(rank, version)
        ordered = own[:1] + held + own[1:] if rank in self.own.get(version, ()) else held + own
        return [(node, lot.copy(rank)) for node, lot in ordered]

    def _own_homes(self, rank: int, version: Version) -> list[Home]:
        """With every region, as its trainer captured it."""
        seated = self.own.get(version, {}).get(rank)
        return ([seated] if seated else []) + self._strays.get(version, {}).get(rank, [])

    def _held_of(self, rank: int, version: Version) -> list[Home]:
        """A few ranks are looked for; for many a book is made."""
        self._asked += 1
        if self._asked <= ASKED_WITHOUT_A_BOOK:
            return [home for home in self._held.get(version, ()) if rank in home[1].ranks]
        if version not in self._holders:
            found: dict[int, list[Home]] = {}
            for home in self._held.get(version, ()):
                for each in home[1].ranks:
                    found.setdefault(each, []).append(home)
            self._holders[version] = found
        return self._holders[version].get(rank, [])

    def fullest_first(self, rank: int, version: Version) -> list[tuple[NodeView, Copy]]:
        """Those first that have the replica region too."""
        return sorted(self.homes(rank, version), key=lambda home: not home[1].seal.full)

    def rests_complete(self, ranks: range, node: str, live: Version, kept: Version) -> bool:
        """They live there, and have what is kept at home."""
        standing, at_home = self._standing.get(live, ()), self._at_home.get((node, kept), ())
        return all(map(standing.__contains__, ranks)) and all(map(at_home.__contains__, ranks))

    def holds_all(self, node: str, ranks: range, version: Version) -> bool:
        return all(map(self._held_by.get((node, version), ()).__contains__, ranks))

    def at_home(self, rank: int, version: Version, seat: str) -> bool:
        seated = self.own.get(version, {}).get(rank)
        if seated is not None and seated[0].node == seat:
            return True
        return any(node.node == seat for node, _ in self._strays.get(version, {}).get(rank, ()))

    def holds(self, node: str, rank: int, version: Version) -> bool:
        return rank in self._held_by.get((node, version), ())

    # --- where ranks can stand ---------------------------------------------------------------------------------------

    def newest_common(self) -> Version | None:
        versions = set(self._standing) | self.sealed_versions()
        newest_first = sorted(versions, key=lambda v: (v.number, v.born), reverse=True)
        return next((version for version in newest_first if self.all_can_stand(version)), None)

    def all_can_stand(self, version: Version) -> bool:
        return not any(not self.can_stand(rank, version) for rank in self._unsure(version))

    def who_cannot_stand(self, version: Version) -> tuple[int, ...]:
        return tuple(rank for rank in self._unsure(version) if not self.can_stand(rank, version))

    def _unsure(self, version: Version) -> list[int]:
        """Who neither lives there nor has a copy of its own, with every region, at home."""
        own, standing = self.own.get(version, {}), self._standing.get(version, set())
        return [rank for rank in range(self._layout.world_size) if rank not in own and rank not in standing]

    def can_stand(self, rank: int, version: Version) -> bool:
        return self.live.get(rank) == version or self.can_be_had(rank, version)

    def can_be_had(self, rank: int, version: Version) -> bool:
        return rank in self.own.get(version, ()) or self.fetch(rank, version) is not None

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
        """Other ranks' own copies with the same replica region. The digest says so, whoever knows of peers."""
        seal = copy.seal
        alike = self._twins_at(seal.version).get(replica_of(seal), [])
        return [(home[0], rank) for rank, home in alike if rank != seal.rank][:TWINS_AT_MOST]

    def _twins_at(self, version: Version) -> dict[tuple[int, int], list[tuple[int, Home]]]:
        if version not in self._twins:
            ranks = self.own.get(version, {}).keys() | self._strays.get(version, {}).keys()
            found: dict[tuple[int, int], list[tuple[int, Home]]] = {}
            for rank in sorted(ranks):
                for home in self._own_homes(rank, version):
                    found.setdefault(home[1].replica_of(rank), []).append((rank, home))
            self._twins[version] = found
        return self._twins[version]


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
