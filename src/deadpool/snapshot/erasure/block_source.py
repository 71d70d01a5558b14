"""Reads blocks of a coded group from one node: pieces of a member's own snapshot, or rows of a parity that it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deadpool.errors import TransferError, WireError
from deadpool.protocol.features.coding.stripes import Place
from deadpool.protocol.identity import Version
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Piece, Seal
from deadpool.snapshot.erasure.parity_frames import (
    ParityContents,
    ParityDescription,
    ParityName,
    pack_name,
    pack_version,
)
from deadpool.snapshot.erasure.parity_slot import Contribution
from deadpool.snapshot.transfer.channel import TransferAddress
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Chunk, Kind, pack_chunk, read_seal_field


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSource:
    """A node that has one member's blocks: its snapshot, or the parity that it keeps for the others."""

    node: str
    address: TransferAddress
    member: int
    is_parity: bool

    def __str__(self) -> str:
        return f"{self.node} ({'parity' if self.is_parity else 'snapshot'} of member {self.member})"


class BlockReader:
    """The conversation with one source, on one stream."""

    def __init__(self, source: BlockSource, group: RankGroup, version: Version) -> None:
        self.source = source
        self.seal: Seal | None = None  # of the snapshot that the source has, if it has one
        self.contents: ParityContents | None = None  # of the parity, if it has that
        self._group, self._version = group, version
        self._rank = group.ranks[source.member]
        self._row_digests: Mapping[Place, int] = {}
        self._row_sizes: Mapping[Place, int] = {}

    def open(self, connection: Connection) -> None:
        """Learns what the source has; TransferError or WireError if that is of no use."""
        if self.source.is_parity:
            self._open_parity(connection)
        else:
            connection.send(Kind.PULL, [self._rank, *pack_version(self._version)])
            body = connection.expect(Kind.FOUND).body
            self.seal = read_seal_field(body[0] if body else None)
            if (self.seal.rank, self.seal.version) != (self._rank, self._version):
                raise WireError(f"the peer has {self.seal.version} of rank {self.seal.rank}")

    def _open_parity(self, connection: Connection) -> None:
        name = ParityName(group=self._group, member=self.source.member, version=self._version)
        connection.send(Kind.DESCRIBE, pack_name(name))
        frame = connection.expect(Kind.DESCRIPTION)
        description = ParityDescription(name, frame.body)
        self.contents = description.contents(connection.receive_list(frame, description.payload_bytes))
        self._row_digests = self.contents.digests_by_place()
        self._row_sizes = {row.place: row.size for row in self.contents.layout.rows}

    def check(self, catalog: Mapping[int, Contribution]) -> None:
        """Compares what the source says with what is known of the group; TransferError if they differ."""
        if self.contents is not None:
            for member, contribution in self.contents.contributions.items():
                if member in catalog and not _same(catalog[member].seal, contribution.seal):
                    raise TransferError(f"its parity was made of another snapshot of member {member}")
        known = catalog.get(self.source.member)
        if self.seal is not None and known is not None and not _same(known.seal, self.seal):
            raise TransferError(f"its snapshot of rank {self._rank} is another one than was coded")

    def ask(self, connection: Connection, place: Place, piece: Piece | None) -> None:
        """Asks for one block; `piece` is what the member has there, if the source is a snapshot."""
        if self.source.is_parity:
            name = ParityName(group=self._group, member=self.source.member, version=self._version)
            connection.send(Kind.READ_ROW, [*pack_name(name), *place])
        else:
            assert piece is not None
            body = [self._rank, *pack_version(self._version), *pack_chunk(_chunk(piece))]
            connection.send(Kind.READ, body)

    def receive(self, connection: Connection, place: Place, piece: Piece | None, buffer: bytearray) -> memoryview:
        """The block that was asked for first. It is not checked yet."""
        frame = connection.expect(Kind.DATA)
        expected = list(place) if self.source.is_parity else pack_chunk(_chunk(piece))
        size = self._row_sizes[place] if piece is None else piece.size
        if frame.body != expected or frame.head.payload_bytes != size:
            raise WireError("the peer answered another read than was asked for")
        view = memoryview(buffer)[:size]
        connection.receive_into(view)
        return view

    def row_digest(self, place: Place) -> int:
        return self._row_digests[place]


def _chunk(piece: Piece | None) -> Chunk:
    assert piece is not None
    return Chunk(region=piece.region, offset=piece.offset, size=piece.size)


def _same(one: Seal, other: Seal) -> bool:
    """Whether they are of the same bytes, as far as regions were sent."""
    return (one.rank, one.version, one.extent, one.digest) == (other.rank, other.version, other.extent, other.digest)
