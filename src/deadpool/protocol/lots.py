"""Copies in lots: those of one version that are alike but for their rank and their digests.

A node has a handful of lots, however many ranks it seats, and a coordinator of thousands of nodes looks at lots where
it would have to look at every copy. A lot makes its copies when somebody asks for them. `Copies` is what a tuple of
copies becomes on its way through the wire: it is used like one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Copy
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal


@dataclass(frozen=True, slots=True)
class Lot:
    version: Version
    extent: Extent
    geometry: Geometry
    full: bool
    peers: tuple[int, ...]
    ranks: tuple[int, ...]
    digests: tuple[int, ...]  # three for each rank: record, unique, replica

    @property
    def has_replica(self) -> bool:
        return bool(self.extent.replica_bytes)

    def replica_of(self, rank: int) -> tuple[int, int]:
        """What tells its replica region from others, as seal.replica_of says it."""
        return (self.extent.replica_bytes, self.digests[3 * self.ranks.index(rank) + 2])

    def copy(self, rank: int) -> Copy:
        return self._copy(self.ranks.index(rank))

    def copies(self) -> Iterator[Copy]:
        return map(self._copy, range(len(self.ranks)))

    def _copy(self, index: int) -> Copy:
        record, unique, replica = self.digests[3 * index : 3 * index + 3]
        digest = Digest(record=record, unique=unique, replica=replica)
        seal = Seal(rank=self.ranks[index], version=self.version, extent=self.extent, digest=digest, full=self.full)
        return Copy(seal=seal, geometry=self.geometry, peers=self.peers)


class Copies(Sequence[Copy]):
    __slots__ = ("_all", "lots")

    def __init__(self, lots: tuple[Lot, ...]) -> None:
        self.lots = lots
        self._all: tuple[Copy, ...] | None = None

    def all(self) -> tuple[Copy, ...]:
        if self._all is None:
            self._all = tuple(copy for lot in self.lots for copy in lot.copies())
        return self._all

    @overload
    def __getitem__(self, index: int) -> Copy: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Copy]: ...
    def __getitem__(self, index: int | slice) -> Copy | Sequence[Copy]:
        return self.all()[index]

    def __len__(self) -> int:
        return sum(len(lot.ranks) for lot in self.lots)

    def __iter__(self) -> Iterator[Copy]:
        return iter(self.all())

    def __eq__(self, other: object) -> bool:
        """In any order: who sorts copies into lots keeps none."""
        if not isinstance(other, tuple | Copies):
            return NotImplemented
        return len(self) == len(other) and set(self) == set(other)

    def __hash__(self) -> int:
        return hash(frozenset(self.all()))

    def __repr__(self) -> str:
        return repr(self.all())


def lots_of(copies: Iterable[Copy]) -> tuple[Lot, ...]:
    if isinstance(copies, Copies):
        return copies.lots
    alike: dict[tuple[Version, Extent, Geometry, bool, tuple[int, ...]], list[Seal]] = {}
    for copy in copies:
        seal = copy.seal
        alike.setdefault((seal.version, seal.extent, copy.geometry, seal.full, copy.peers), []).append(seal)
    return tuple(
        Lot(*common, ranks=tuple(seal.rank for seal in seals), digests=tuple(_digests(seals)))
        for common, seals in alike.items()
    )


def _digests(seals: list[Seal]) -> Iterator[int]:
    for seal in seals:
        yield from (seal.digest.record, seal.digest.unique, seal.digest.replica)
