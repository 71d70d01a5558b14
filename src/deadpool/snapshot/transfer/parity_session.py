"""One connection's requests for the parities of this node: to add to one, to learn what one is made of, to read one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deadpool.protocol.causes import Refusal
from deadpool.protocol.coding import Place
from deadpool.snapshot.arena.piece_digests import packed_bytes
from deadpool.snapshot.transfer.callbacks import FoundParity, ParityCallbacks, TransferRefused
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Frame, Kind, naturals
from deadpool.snapshot.transfer.incoming_contribution import IncomingContribution
from deadpool.snapshot.transfer.parity_frames import pack_parity, unpack_contribution, unpack_name, with_digests

_NAME_FIELDS = 5


class ParitySession:
    def __init__(self, connection: Connection, callbacks: ParityCallbacks) -> None:
        self._connection = connection
        self._callbacks = callbacks

    def accept(self, packed: list[Any], frame: Frame, forget: Callable[[], None]) -> IncomingContribution | None:
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
        return IncomingContribution(
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
            self._connection.send_list(Kind.FOUND_PARITY, body, payload)

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
