"""What a node holds of the job's state: copies in its arena, live state in its trainers, both kept in batches.

The copies of one version on one node differ in their ranks and digests only. A batch says once what they share, so a
node has a handful of batches however many ranks it seats. A coordinator of thousands of nodes reads batches; single
copies are made only for the code that asks for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from deadpool.protocol.identity import Value, Version
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal

_DIGEST = struct.Struct("<QQQ")  # record, unique, replica
DIGEST_BYTES = _DIGEST.size


class Copy(Value, frozen=True, kw_only=True):
    """A sealed snapshot in some node's arena. The seal is the rank's own, whichever node keeps the copy."""

    seal: Seal
    geometry: Geometry
    peers: tuple[int, ...] = ()  # ranks that hold the replica region of this rank identically


class Live(Value, frozen=True, kw_only=True):
    """What a trainer that has come to rest holds in its device memory."""

    rank: int
    version: Version | None
    clean: bool


class SharedTraits(Value, frozen=True):
    """What the copies of a batch have in common. It is the same for the batches of most nodes."""

    version: Version
    extent: Extent
    geometry: Geometry
    full: bool
    peers: tuple[int, ...]


class CopyBatch(Value, frozen=True):
    """Copies that are alike but for their ranks and digests."""

    shared: SharedTraits
    ranks: tuple[int, ...]
    digests: bytes  # of each rank in turn, packed: few of them are ever read

    def __post_init__(self) -> None:
        """A batch that arrives may claim anything; msgspec turns this error into a refusal of the message."""
        if len(self.digests) != DIGEST_BYTES * len(self.ranks):
            raise ValueError("not three digests for each copy")

    @property
    def version(self) -> Version:
        return self.shared.version

    @property
    def has_replica(self) -> bool:
        return bool(self.shared.extent.replica_bytes)

    def replica_of(self, rank: int) -> tuple[int, int]:
        """What tells the replica region of this rank's copy from others, as seal.replica_of gives it."""
        return (self.shared.extent.replica_bytes, self._digest(self.ranks.index(rank)).replica)

    def copy(self, rank: int) -> Copy:
        return self._copy(self.ranks.index(rank))

    def __iter__(self) -> Iterator[Copy]:
        return map(self._copy, range(len(self.ranks)))

    def _copy(self, index: int) -> Copy:
        shared, rank, digest = self.shared, self.ranks[index], self._digest(index)
        seal = Seal(rank=rank, version=shared.version, extent=shared.extent, digest=digest, full=shared.full)
        return Copy(seal=seal, geometry=shared.geometry, peers=shared.peers)

    def _digest(self, index: int) -> Digest:
        record, unique, replica = _DIGEST.unpack_from(self.digests, index * DIGEST_BYTES)
        return Digest(record=record, unique=unique, replica=replica)


class LiveBatch(Value, frozen=True):
    """Ranks whose live state is of the same version."""

    version: Version | None
    clean: bool
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ValueError("no rank in a batch of live states")

    def __iter__(self) -> Iterator[Live]:
        return (Live(rank=rank, version=self.version, clean=self.clean) for rank in self.ranks)


class NodeCopies(Value, frozen=True):
    """The copies of one node. Iterating makes single copies, in the order of their ranks."""

    batches: tuple[CopyBatch, ...] = ()

    @classmethod
    def of(cls, copies: Iterable[Copy]) -> NodeCopies:
        alike: dict[SharedTraits, list[Seal]] = {}
        for copy in copies:
            seal = copy.seal
            shared = SharedTraits(seal.version, seal.extent, copy.geometry, seal.full, copy.peers)
            alike.setdefault(shared, []).append(seal)
        return cls(tuple(_batch(shared, seals) for shared, seals in alike.items()))

    def __len__(self) -> int:
        return sum(len(batch.ranks) for batch in self.batches)

    def __iter__(self) -> Iterator[Copy]:
        copies = [copy for batch in self.batches for copy in batch]
        return iter(sorted(copies, key=lambda copy: copy.seal.rank))


def _batch(shared: SharedTraits, seals: list[Seal]) -> CopyBatch:
    digests = (_DIGEST.pack(seal.digest.record, seal.digest.unique, seal.digest.replica) for seal in seals)
    return CopyBatch(shared, tuple([seal.rank for seal in seals]), b"".join(digests))


class Lives(Value, frozen=True):
    """The live states of one node's trainers. Iterating makes single ones, in the order of their ranks."""

    batches: tuple[LiveBatch, ...] = ()

    @classmethod
    def of(cls, lives: Iterable[Live]) -> Lives:
        alike: dict[tuple[Version | None, bool], list[int]] = {}
        for live in lives:
            alike.setdefault((live.version, live.clean), []).append(live.rank)
        return cls(tuple(LiveBatch(version, clean, tuple(ranks)) for (version, clean), ranks in alike.items()))

    def __len__(self) -> int:
        return sum(len(batch.ranks) for batch in self.batches)

    def __iter__(self) -> Iterator[Live]:
        return iter(sorted((live for batch in self.batches for live in batch), key=lambda live: live.rank))


class JointCopy(Value, frozen=True, kw_only=True):
    """What one member of a group keeps of a version for the others together, whole and sealed. It holds their seals, so
    it is evidence for each of them, and bytes together with what other members keep."""

    group: RankGroup
    member: int
    version: Version
    digest: int
    copies: NodeCopies  # of the other members, as they were when it was made

    @property
    def ranks(self) -> tuple[int, ...]:
        """Returns the ranks of the other members."""
        return tuple(self.group.ranks[other] for other in self.group.others(self.member))

    @property
    def keeper(self) -> int:
        """The rank of this member, under which its node is asked for it."""
        return self.group.ranks[self.member]


class Inventory(Value, frozen=True, kw_only=True):
    """All state that a node has, frozen when it acknowledged a fence."""

    live: Lives = Lives()
    own: NodeCopies = NodeCopies()
    held: NodeCopies = NodeCopies()
    joint: tuple[JointCopy, ...] = ()
