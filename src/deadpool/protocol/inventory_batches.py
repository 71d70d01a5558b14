"""Copies in batches: those of one version that are alike but for their rank and their digests. Live states likewise.

A node has a handful of batches, however many ranks it seats, and a coordinator of thousands of nodes looks at batches where
it would have to look at every copy. A lot makes its items when somebody asks for them; to freeze it would take longer
than to make it. `InLots` is used like the tuple of all items.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Copy, Live
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal

Item = TypeVar("Item")
_DIGEST = struct.Struct("<QQQ")  # record, unique, replica
DIGEST_BYTES = _DIGEST.size


@dataclass(frozen=True, slots=True)
class Make:
    """What the copies of a lot have in common. The batches of most nodes are of the same one."""

    version: Version
    extent: Extent
    geometry: Geometry
    full: bool
    peers: tuple[int, ...]


@dataclass(slots=True)
class Batch:
    make: Make
    ranks: tuple[int, ...]
    digests: bytes  # of each rank, as they travel: of few copies somebody wants to know

    @property
    def version(self) -> Version:
        return self.make.version

    @property
    def has_replica(self) -> bool:
        return bool(self.make.extent.replica_bytes)

    def replica_of(self, rank: int) -> tuple[int, int]:
        """What tells its replica region from others, as seal.replica_of says it."""
        return (self.make.extent.replica_bytes, self._digest(self.ranks.index(rank)).replica)

    def copy(self, rank: int) -> Copy:
        return self._copy(self.ranks.index(rank))

    def __iter__(self) -> Iterator[Copy]:
        return map(self._copy, range(len(self.ranks)))

    def _copy(self, index: int) -> Copy:
        make, rank, digest = self.make, self.ranks[index], self._digest(index)
        seal = Seal(rank=rank, version=make.version, extent=make.extent, digest=digest, full=make.full)
        return Copy(seal=seal, geometry=make.geometry, peers=make.peers)

    def _digest(self, index: int) -> Digest:
        record, unique, replica = _DIGEST.unpack_from(self.digests, index * DIGEST_BYTES)
        return Digest(record=record, unique=unique, replica=replica)


@dataclass(slots=True)
class LiveBatch:
    """Ranks that live at the same version."""

    version: Version | None
    clean: bool
    ranks: tuple[int, ...]

    def __iter__(self) -> Iterator[Live]:
        return (Live(rank=rank, version=self.version, clean=self.clean) for rank in self.ranks)


class InLots(Sequence[Item]):
    __slots__ = ("_all", "batches")

    def __init__(self, batches: tuple[Any, ...]) -> None:
        self.batches = batches
        self._all: tuple[Item, ...] | None = None

    def all(self) -> tuple[Item, ...]:
        if self._all is None:
            self._all = tuple(item for lot in self.batches for item in lot)
        return self._all

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self.all()[index]

    def __len__(self) -> int:
        return sum(len(lot.ranks) for lot in self.batches)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.all())

    def __eq__(self, other: object) -> bool:
        """In any order: who sorts items into batches keeps none."""
        if not isinstance(other, tuple | InLots):
            return NotImplemented
        return len(self) == len(other) and set(self) == set(other)

    def __hash__(self) -> int:
        return hash(frozenset(self.all()))

    def __repr__(self) -> str:
        return repr(self.all())


def batches_of(copies: Iterable[Copy]) -> tuple[Batch, ...]:
    if isinstance(copies, InLots):
        return copies.batches
    alike: dict[Make, list[Seal]] = {}
    for copy in copies:
        seal = copy.seal
        make = Make(seal.version, seal.extent, copy.geometry, seal.full, copy.peers)
        alike.setdefault(make, []).append(seal)
    return tuple(
        Batch(make, tuple(seal.rank for seal in seals), b"".join(map(_digest_of, seals)))
        for make, seals in alike.items()
    )


def _digest_of(seal: Seal) -> bytes:
    return _DIGEST.pack(seal.digest.record, seal.digest.unique, seal.digest.replica)


def live_batches_of(lives: Iterable[Live]) -> tuple[LiveBatch, ...]:
    if isinstance(lives, InLots):
        return lives.batches
    alike: dict[tuple[Version | None, bool], list[int]] = {}
    for live in lives:
        alike.setdefault((live.version, live.clean), []).append(live.rank)
    return tuple(LiveBatch(*common, ranks=tuple(ranks)) for common, ranks in alike.items())
