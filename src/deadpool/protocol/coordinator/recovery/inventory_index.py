"""Where every rank's state is, in all frozen inventories, by version and rank. Part of the planner.

The index keeps batches and not single copies: there may be a hundred thousand copies, and a plan looks closely only at
those of the lost ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from deadpool.protocol.coordinator.protection.redundancy import COPIES_ONLY, Redundancy
from deadpool.protocol.coordinator.recovery.fallback import KeptVersion, fetch_kept
from deadpool.protocol.coordinator.recovery.placement import Rack
from deadpool.protocol.identity import Address, Generation, Layout, Version
from deadpool.protocol.inventory_batches import CopyBatch
from deadpool.protocol.messages import Copy, Fetch, Inventory, JointCopy, Source, TrainerInfo
from deadpool.protocol.schemes import Keeper, RankGroup
from deadpool.protocol.seal import Geometry, replica_of

SCANNED_POSITIONS = 30
"""The number of positions up to which all held copies are scanned; for more a list by rank is made."""
REPLICAS_AT_MOST = 8
"""How many replicas are named as sources: any one will do, and there may be one on every node."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node that acknowledged the fence. A Struct: a plan makes one for each of thousands of nodes."""

    node: str
    data: Address
    position: int | None  # None: a spare
    trainers: tuple[TrainerInfo, ...]
    inventory: Inventory
    rack: Rack = None
    quarantined: bool = False  # it is seated only where no other node is left
    cut_off: bool = False  # another node is better
    recalled: bool = False  # it has no seat, and without it a plan would have no majority
    doubted: bool = False  # another node is better, and a node that leaves on purpose does not hand over to it
    leaving: bool = False  # it gives up its position where a spare can take it
    planned_in: Generation | None = None  # the newest plan that it has acknowledged its part of


Home = tuple[NodeView, CopyBatch]


class VersionIndex:
    """Where one version is. What all ranks of a position have alike is noted once, by position: that is most of it.

    A rank stands at a version if its live memory is a clean state of it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._all_stand: set[int] = set()  # positions
        self._stand: set[int] = set()  # ranks of other positions
        self._whole: dict[int, Home] = {}  # positions with every rank at home, in one batch
        self._own: dict[int, Home] = {}  # ranks at home, of other positions
        self._elsewhere: dict[int, list[Home]] = {}  # where the rank was seated before
        self._held: list[Home] = []
        self._held_by: dict[str, list[tuple[int, ...]]] = {}  # the same by node: ranks
        self._held_at: dict[int, list[Home]] = {}  # of the held ones, by position that was asked about
        self._holders: dict[int, list[Home]] | None = None  # the same by rank, made when many are asked about
        self._joint: dict[Keeper, list[tuple[NodeView, JointCopy]]] = {}
        self._by_replica: dict[tuple[int, int], list[tuple[int, Home]]] | None = None  # made when asked about

    # --- counting -----------------------------------------------------------------------------------------------------

    def count_live(self, ranks: tuple[int, ...], position: int, seats: tuple[int, ...]) -> None:
        if ranks == seats:
            self._all_stand.add(position)
        else:
            self._stand.update(rank for rank in ranks if rank in seats)

    def count_own(self, home: Home, seats: tuple[int, ...]) -> None:
        node, batch = home
        if batch.ranks == seats and node.position is not None:
            self._whole[node.position] = home
            return
        for rank in batch.ranks:
            if rank in seats:
                self._own[rank] = home
            else:
                self._elsewhere.setdefault(rank, []).append(home)

    def count_held(self, home: Home) -> None:
        self._held.append(home)
        self._held_by.setdefault(home[0].node, []).append(home[1].ranks)

    def count_joint(self, node: NodeView, joint: JointCopy) -> None:
        self._joint.setdefault((joint.group, joint.member), []).append((node, joint))

    # --- which ranks stand there, where copies are --------------------------------------------------------------------

    @property
    def is_sealed(self) -> bool:
        return bool(self._whole or self._own or self._elsewhere or self._held or self._joint)

    def stands(self, rank: int) -> bool:
        return rank in self._stand or self._layout.position_of(rank) in self._all_stand

    def all_stand(self, position: int) -> bool:
        return position in self._all_stand or self._stand.issuperset(self._layout.ranks_at(position))

    def is_whole(self, position: int) -> bool:
        """Every rank has its copy at home."""
        return position in self._whole or self._own.keys() >= set(self._layout.ranks_at(position))

    def home_of(self, rank: int) -> Home | None:
        return self._own.get(rank) or self._whole.get(self._layout.position_of(rank))

    def uncovered_ranks(self) -> list[int]:
        """Ranks that neither stand there nor have a copy of their own, with every region, at home."""
        layout, own, stand = self._layout, self._own, self._stand
        odd = [p for p in range(layout.positions) if p not in self._whole and p not in self._all_stand]
        return [r for position in odd for r in layout.ranks_at(position) if r not in own and r not in stand]

    def is_held_by(self, node: str, ranks: range) -> bool:
        batches = self._held_by.get(node, ())
        return tuple(ranks) in batches or set(ranks).issubset(rank for batch in batches for rank in batch)

    def has_joint(self, node: str, keeper: Keeper) -> bool:
        return any(view.node == node for view, _ in self._joint.get(keeper, ()))

    def joint_copies_of(self, rank: int) -> dict[RankGroup, list[tuple[NodeView, JointCopy]]]:
        """Returns, by group, the joint copies that this rank is one of."""
        found: dict[RankGroup, list[tuple[NodeView, JointCopy]]] = {}
        for (group, member), joint in self._joint.items():
            if rank in group.ranks and group.ranks[member] != rank:
                found.setdefault(group, []).extend(joint)
        return found

    def own_homes(self, rank: int) -> list[Home]:
        """Copies with every region, as its trainer captured them. First the one where it is seated."""
        seated = self.home_of(rank)
        return ([seated] if seated else []) + self._elsewhere.get(rank, [])

    def owners(self) -> list[int]:
        """Ranks with a copy of their own on some node."""
        whole = [rank for position in self._whole for rank in self._layout.ranks_at(position)]
        return sorted({*whole, *self._own, *self._elsewhere})

    def held_of(self, rank: int) -> list[Home]:
        """Copies of this rank at holders."""
        if len(self._held_at) < SCANNED_POSITIONS:
            return [home for home in self._held_at_position_of(rank) if rank in home[1].ranks]
        if self._holders is None:
            self._holders = {}
            for home in self._held:
                for each in home[1].ranks:
                    self._holders.setdefault(each, []).append(home)
        return self._holders.get(rank, [])

    def _held_at_position_of(self, rank: int) -> list[Home]:
        """Copies of all ranks at that position: where one rank is asked about, all will be."""
        position = self._layout.position_of(rank)
        if position not in self._held_at:
            apart = frozenset(self._layout.ranks_at(position)).isdisjoint
            self._held_at[position] = [home for home in self._held if not apart(home[1].ranks)]
        return self._held_at[position]

    def copies_with_replica(self, replica: tuple[int, int]) -> list[tuple[int, Home]]:
        """Own copies with that replica region. The digest says so, even where peers are not known."""
        if self._by_replica is None:
            self._by_replica = {}
            for rank in self.owners():
                for home in self.own_homes(rank):
                    self._by_replica.setdefault(home[1].replica_of(rank), []).append((rank, home))
        return self._by_replica.get(replica, [])


def is_void(version: Version, void: tuple[Version, ...]) -> bool:
    """Whether the version was computed after one of these, and before the generation that it is named by, in which
    computing begins anew."""
    return any(version.number > bound.number and version.generation < bound.generation for bound in void)


class InventoryIndex:
    """A node that has lost its seat, or gives it up, is a source like any other: its copies are as sealed as before.
    Only the memory of its trainers ends with them."""

    def __init__(self, layout: Layout, redundancy: Redundancy = COPIES_ONLY, void: tuple[Version, ...] = ()) -> None:
        self._layout, self._redundancy, self._void = layout, redundancy, void
        self._versions: dict[Version, VersionIndex] = {}
        self._empty = VersionIndex(layout)  # of a version that no node has; nothing is written into it
        self._last: tuple[Version | None, VersionIndex] = (None, self._empty)
        self._fallback: tuple[Version | None, KeptVersion | None] = (None, None)
        self._left_out: frozenset[Fetch] = frozenset()

    def of(self, version: Version) -> VersionIndex:
        return self._versions.get(version, self._empty)

    # --- counting -----------------------------------------------------------------------------------------------------

    def count(self, node: NodeView, *, stays: bool) -> None:
        """Counts what a node has. If it does not stay its trainers will end, and only its copies count."""
        position, inventory = node.position, node.inventory
        seats = tuple(self._layout.ranks_at(position)) if position is not None else ()
        if stays and position is not None:
            for live in inventory.live.batches:
                if live.clean and live.version is not None:
                    self._version_index(live.version).count_live(live.ranks, position, seats)
        for batch in inventory.own.batches:
            self._version_index(batch.shared.version).count_own((node, batch), seats)
        for batch in inventory.held.batches:
            self._version_index(batch.shared.version).count_held((node, batch))
        for joint in inventory.joint:
            self._version_index(joint.version).count_joint(node, joint)

    def _version_index(self, version: Version) -> VersionIndex:
        """Returns the index of a version, which mostly is the same version as for the node before."""
        if version != self._last[0]:
            if is_void(version, self._void):
                self._last = (version, VersionIndex(self._layout))  # nobody looks into it
            else:
                self._last = (version, self._versions.setdefault(version, VersionIndex(self._layout)))
        return self._last[1]

    def leave_out(self, fetches: frozenset[Fetch]) -> None:
        """Leaves out sources from which fetches have failed."""
        self._left_out = fetches

    def count_fallback(self, kept: KeptVersion, generation: Generation) -> Version:
        """Rule 26, a checkpoint is named anew: returns the version that it is in this generation."""
        version = Version(generation, kept.number)
        self._fallback = (version, kept)
        return version

    def fallback_at(self, version: Version | None) -> str:
        """The name of the kept version that this one comes from; empty: it is in memory."""
        known, kept = self._fallback
        return kept.name if kept is not None and version == known else ""

    # --- where copies are ---------------------------------------------------------------------------------------------

    def sealed_versions(self) -> set[Version]:
        return {version for version, index in self._versions.items() if index.is_sealed}

    def homes(self, rank: int, version: Version) -> list[tuple[NodeView, Copy]]:
        """All nodes that have the rank's own seal, and the bytes to it."""
        index = self.of(version)
        held, own = index.held_of(rank), index.own_homes(rank)
        ordered = own[:1] + held + own[1:] if index.home_of(rank) else held + own
        return [(node, batch.copy(rank)) for node, batch in ordered]

    def fullest_first(self, rank: int, version: Version) -> list[tuple[NodeView, Copy]]:
        """Nodes that have the replica region too come first."""
        return sorted(self.homes(rank, version), key=lambda home: not home[1].seal.full)

    def at_home(self, rank: int, version: Version, seat: str) -> bool:
        return any(node.node == seat for node, _ in self.of(version).own_homes(rank))

    def holds(self, node: str, rank: int, version: Version) -> bool:
        return self.of(version).is_held_by(node, range(rank, rank + 1))

    # --- where ranks can stand ----------------------------------------------------------------------------------------

    def newest_common(self) -> Version | None:
        newest_first = sorted(self._versions, key=lambda v: (v.number, v.generation), reverse=True)
        return next((version for version in newest_first if self.all_can_stand(version)), None)

    def all_can_stand(self, version: Version) -> bool:
        return all(self.can_stand(rank, version) for rank in self.of(version).uncovered_ranks())

    def ranks_that_cannot_stand(self, version: Version) -> tuple[int, ...]:
        return tuple(rank for rank in self.of(version).uncovered_ranks() if not self.can_stand(rank, version))

    def can_stand(self, rank: int, version: Version) -> bool:
        return self.of(version).stands(rank) or self.can_be_had(rank, version)

    def can_be_had(self, rank: int, version: Version) -> bool:
        return self.of(version).home_of(rank) is not None or self.fetch(rank, version) is not None

    def fetch(self, rank: int, version: Version) -> Fetch | None:
        """Where to pull the snapshot from."""
        for ways in (self._fetch_whole, self._fetch_rebuilt, self._fetch_kept):
            found = ways(rank, version)
            if found is not None and found not in self._left_out:
                return found
        return None

    def _fetch_whole(self, rank: int, version: Version) -> Fetch | None:
        """Returns how to fetch a whole copy: its record and unique bytes and, if they lack it, a replica's bytes."""
        homes = self.homes(rank, version)
        if not homes:
            return None
        base = tuple(source_at(node, rank, "record", "unique") for node, _ in homes)
        return self._with_replica(Fetch(copy=homes[0][1], groups=(base,)), homes)

    def _fetch_rebuilt(self, rank: int, version: Version) -> Fetch | None:
        """Returns how to rebuild a copy from what is left of its group."""
        found = self._redundancy.rebuild(self.of(version), rank)
        if found is None:
            return None
        copy, how = found
        fetch = Fetch(copy=copy, groups=(), rebuild=how)
        return fetch if copy.seal.full else self._with_replica(fetch, [])

    def _with_replica(self, fetch: Fetch, homes: list[tuple[NodeView, Copy]]) -> Fetch | None:
        copy, rank = fetch.copy, fetch.copy.seal.rank
        if not copy.seal.extent.replica_bytes:
            return fetch
        others = self._replicas_of(copy)
        replicas = [source_at(node, rank, "replica") for node, home in homes if home.seal.full]
        replicas += [source_at(node, other, "replica") for node, other in others]
        if not replicas:
            return None
        known = next((home.peers for _, home in homes if home.peers), ())  # a holder may not know of peers
        peers = known or tuple(other for _, other in others)
        whole = replace(copy, geometry=_full_geometry(copy), peers=peers)
        return replace(fetch, copy=whole, groups=(*fetch.groups, tuple(replicas)))

    def _fetch_kept(self, rank: int, version: Version) -> Fetch | None:
        known, kept = self._fallback
        return fetch_kept(kept, rank, version) if kept is not None and version == known else None

    def _replicas_of(self, copy: Copy) -> list[tuple[NodeView, int]]:
        """Other ranks' own copies with the same replica region."""
        same = self.of(copy.seal.version).copies_with_replica(replica_of(copy.seal))
        return [(home[0], rank) for rank, home in same if rank != copy.seal.rank][:REPLICAS_AT_MOST]


def source_at(node: NodeView, rank: int, *regions: str) -> Source:
    return Source(node=node.node, address=node.data, rank=rank, regions=regions)


def index_nodes(
    layout: Layout,
    nodes: Iterable[NodeView],
    leaving: frozenset[str],
    redundancy: Redundancy,
    void: tuple[Version, ...] = (),
) -> InventoryIndex:
    """`leaving`: nodes whose trainers will end."""
    index = InventoryIndex(layout, redundancy, void)
    for node in nodes:
        index.count(node, stays=node.node not in leaving)
    return index


def _full_geometry(copy: Copy) -> Geometry:
    """The geometry of a slot with room for the replica region, which a holder's slot may lack."""
    return replace(copy.geometry, replica_bytes=copy.seal.extent.replica_bytes)
