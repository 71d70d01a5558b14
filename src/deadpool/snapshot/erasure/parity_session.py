"""The parities of this node as its peers use them.

`ParitySession`: one connection's requests for the parities of this node: to add to one, to learn what one is made
of, to read one.

`ContributionArrival` receives what one member adds to a parity of this node, over one or more streams.

Each piece is read into a buffer, checked, and only then added. A piece that is damaged is left out, the others
count: the sender learns of it at the end, and a repeated contribution sends what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deadpool.errors import WireError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.features.coding.stripes import Place
from deadpool.protocol.identity import Generation
from deadpool.protocol.seal import DAMAGED
from deadpool.snapshot.arena.checksums import checksum, packed_bytes
from deadpool.snapshot.erasure.parity_frames import (
    ParityName,
    pack_parity,
    unpack_contribution,
    unpack_name,
    with_digests,
)
from deadpool.snapshot.erasure.parity_slot import Contribution, ParitySlot
from deadpool.snapshot.transfer.arrival import Arrival
from deadpool.snapshot.transfer.callbacks import JointFrames, TransferRefused
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Chunk, Frame, Kind, naturals


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundParity:
    """A sealed parity that may be read, and where its slot lies. Its descriptor belongs to the arena."""

    fd: int
    offset: int
    slot: ParitySlot


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityCallbacks:
    """open         returns the parity that a member of a group wants to add to. Its digests are those of its seal.
    contributed  is called when everything of that member is in.
    dropped      is called when not everything came: its writers have ended, and what has come stays added.
    find         returns a parity that a peer wants to read.
    """

    open: Callable[[Contribution, Generation], ParitySlot | TransferRefused]
    contributed: Callable[[Contribution], None]
    dropped: Callable[[Contribution, str], None]
    find: Callable[[ParityName], FoundParity | None]


class ContributionArrival(Arrival):
    def __init__(
        self,
        *,
        contribution: Contribution,
        slot: ParitySlot,
        lead: Connection,
        callbacks: ParityCallbacks,
        forget: Callable[[], None],
    ) -> None:
        """`slot` has begun the contribution."""
        super().__init__(seal=contribution.seal, lead=lead, forget=forget)
        self._contribution = contribution
        self._slot = slot
        self._callbacks = callbacks
        self._pieces = [piece for _, piece in contribution.pieces()]
        self._indices = {(piece.region, piece.offset): index for index, piece in enumerate(self._pieces)}
        self._folded_before = slot.folded(contribution.member)
        self._awaited = {index for index, folded in enumerate(self._folded_before) if not folded}
        self._claimed: set[int] = set()
        self._buffers: dict[Connection, bytearray] = {}
        self._damage: str | None = None

    def _there_already(self) -> bytes:
        return self._folded_before if any(self._folded_before) else b""

    def _claim(self, chunk: Chunk) -> None:
        index = self._indices.get((chunk.region, chunk.offset))
        if index is None or index not in self._awaited or index in self._claimed:
            raise WireError(f"bytes {chunk.offset}.. of region {chunk.region!r} were sent twice or not asked for")
        if chunk.size != self._pieces[index].size:
            raise WireError(f"a contribution has {chunk.size} bytes where a piece has {self._pieces[index].size}")
        self._claimed.add(index)

    def _read(self, connection: Connection, chunk: Chunk) -> list[int]:
        index = self._indices[chunk.region, chunk.offset]
        view = self._buffer(connection, chunk.size)
        connection.receive_into(view)
        digest, expected = checksum(view), self._contribution.digests.at(self._pieces[index])
        if digest == expected:
            self._slot.fold(self._contribution.member, index, view)
        else:
            self._damage = (
                f"{DAMAGED}: piece {self._pieces[index].number} of region {chunk.region!r} has digest "
                f"{digest:016x} where {expected:016x} was expected"
            )
        return [digest]

    def _buffer(self, connection: Connection, size: int) -> memoryview:
        """One per stream, kept for all its pieces: fresh memory for each would cost more than the sum does."""
        buffer = self._buffers.get(connection)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[connection] = bytearray(size)
        return memoryview(buffer)[:size]

    def _arrived(self, chunk: Chunk, digests: list[int]) -> None:
        self._awaited.discard(self._indices[chunk.region, chunk.offset])

    def _is_complete(self) -> bool:
        return not self._awaited

    def _mismatch(self) -> str | None:
        return self._damage

    def _store(self) -> None:
        self._buffers.clear()
        try:
            self._callbacks.contributed(self._contribution)
        except BaseException as error:
            self._drop(Refusal.BROKEN_OFF, f"the node could not record it: {error}")
            raise
        self._tell_stored()

    def _drop(self, refusal: Refusal, reason: str) -> None:
        self._buffers.clear()
        self._callbacks.dropped(self._contribution, reason)
        self._tell_refused(refusal, reason)


_NAME_FIELDS = 5


class ParitySession(JointFrames):
    def __init__(self, connection: Connection, callbacks: ParityCallbacks) -> None:
        super().__init__(connection)
        self._callbacks = callbacks

    def accept(self, packed: list[Any], frame: Frame, forget: Callable[[], None]) -> ContributionArrival | None:
        """Returns the contribution that begins, or None if it was refused."""
        outline = unpack_contribution(packed)
        contribution = with_digests(outline, self._connection.receive_list(frame, packed_bytes(outline.seal)))
        slot = self._callbacks.open(contribution, frame.head.generation)
        if isinstance(slot, TransferRefused):
            self._connection.refuse(slot.refusal, slot.reason)
            return None
        reason = slot.begin(contribution)
        if reason is not None:
            self._callbacks.dropped(contribution, reason)
            self._connection.refuse(Refusal.DOES_NOT_FIT, reason)
            return None
        return ContributionArrival(
            contribution=contribution,
            slot=slot,
            lead=self._connection,
            callbacks=self._callbacks,
            forget=forget,
        )

    def describe(self, frame: Frame) -> None:
        found = self._find(frame.body)
        if found is not None:
            body, payload = pack_parity(found.slot)
            self._connection.send_list(Kind.DESCRIPTION, body, payload)

    def read(self, frame: Frame) -> None:
        found = self._find(frame.body[:_NAME_FIELDS])
        if found is None:
            return
        place = Place(*naturals(frame.body[_NAME_FIELDS:], 2))
        row = found.slot.row(place)
        if row is None:
            self._connection.refuse(Refusal.NOT_HERE, f"this parity has no row {place.row} in stripe {place.stripe}")
            return
        start = found.offset + found.slot.layout.geometry.offset("unique") + row.offset
        self._connection.send_data(list(place), found.fd, start, row.size)

    def _find(self, values: list[Any]) -> FoundParity | None:
        """Looks the parity up for each read, so that one which is freed in between is not read any further."""
        name = unpack_name(values)
        found = self._callbacks.find(name)
        if found is None or found.slot.digests is None:
            self._connection.refuse(Refusal.NOT_HERE, f"no parity of {name.version} for member {name.member} here")
            return None
        return found
