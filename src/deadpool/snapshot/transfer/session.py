"""Serves one connection, in one thread: reads frames, stores the snapshots that arrive, and sends those asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from deadpool.errors import ArenaError, TransferError, WireError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Geometry, Seal, regions_sent
from deadpool.snapshot.arena.slot import pack_seal
from deadpool.snapshot.transfer.arrival import Arrival
from deadpool.snapshot.transfer.callbacks import Callbacks, FoundCopy, JointFrames, TransferRefused
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import (
    Chunk,
    Frame,
    Kind,
    naturals,
    pack_chunk,
    read_seal_field,
    unpack_chunk,
    unpack_geometry,
)
from deadpool.snapshot.transfer.snapshot_arrival import SnapshotArrival
from deadpool.snapshot.transfer.transport import Transport
from deadpool.snapshot.transfer.windows import receive_window, send_window

Transfers = dict[bytes, Arrival]
"""Arriving snapshots and contributions by the id that their sender chose: a second stream finds its own by this id."""

TRANSFER_ID_BYTES = 16


class TransferSession:
    def __init__(
        self,
        connection: Connection,
        callbacks: Callbacks,
        joint: JointFrames,
        transfers: Transfers,
        admit: Callable[[Generation], None],
        transport: Transport,
    ) -> None:
        self._connection = connection
        self._callbacks = callbacks
        self._joint = joint
        self._transfers = transfers
        self._admit = admit  # raises for a generation that is fenced
        self._transport = transport
        self._led: Arrival | None = None

    def run(self) -> None:
        """Serves until the peer is done or the connection is cut. It raises what ended it."""
        reason = "the session ended"
        try:
            while True:
                self._serve_one()
        except BaseException as error:
            reason = str(error)
            raise
        finally:
            if self._led is not None:
                self._led.fail(reason)

    def _serve_one(self) -> None:
        frame = self._connection.receive_or_idle()
        if frame is None:
            if self._led is not None:
                self._led.fail_if_stalled()
            return
        self._admit(frame.head.generation)
        match frame.head.kind:
            case Kind.PUSH:
                self._on_push(frame)
            case Kind.DATA:
                self._on_data(frame)
            case Kind.PULL:
                self._on_pull(frame)
            case Kind.READ | Kind.LOOK:
                self._on_read(frame)
            case Kind.WINDOW:
                self._on_window(frame)
            case Kind.CONTRIBUTE:
                self._on_contribute(frame)
            case Kind.DESCRIBE:
                self._joint.describe(frame)
            case Kind.READ_ROW:
                self._joint.read(frame)
            case (
                Kind.HELLO
                | Kind.ACCEPT
                | Kind.REFUSED
                | Kind.STORED
                | Kind.FOUND
                | Kind.DESCRIPTION
                | Kind.TAKEN
                | Kind.AGAIN
            ):
                raise WireError(f"{self._connection.peer}: {frame.head.kind.name} was not expected")
            case _ as never:
                assert_never(never)

    # --- in

    def _on_push(self, frame: Frame) -> None:
        transfer, packed_seal, packed_geometry = _lists(frame.body, 3)
        seal, geometry = read_seal_field(packed_seal), unpack_geometry(packed_geometry)
        self._check_id(transfer)
        try:
            geometry.check(seal.extent, regions_sent(seal))
        except ArenaError as error:
            raise WireError(f"{self._connection.peer}: {error}") from error
        view = self._callbacks.open(seal, frame.head.generation, geometry)
        if isinstance(view, TransferRefused):
            self._connection.refuse(view.refusal, view.reason)
        else:
            self._begin(transfer, seal, geometry, view)

    def _begin(self, transfer: bytes, seal: Seal, geometry: Geometry, view: memoryview) -> None:
        try:
            arrival = SnapshotArrival(
                seal=seal,
                geometry=geometry,
                view=view,
                lead=self._connection,
                callbacks=self._callbacks,
                forget=lambda: self._forget(transfer),
                transport=self._transport,
            )
        except ArenaError as error:
            self._callbacks.dropped(seal, str(error))
            self._connection.refuse(Refusal.DOES_NOT_FIT, str(error))
            return
        self._lead(transfer, arrival)

    def _on_contribute(self, frame: Frame) -> None:
        transfer, *packed = _lists(frame.body, 6)
        self._check_id(transfer)
        arrival = self._joint.accept(packed, frame, lambda: self._forget(transfer))
        if arrival is not None:
            self._lead(transfer, arrival)

    def _check_id(self, transfer: Any) -> None:
        if type(transfer) is not bytes or len(transfer) != TRANSFER_ID_BYTES or transfer in self._transfers:
            raise WireError(f"{self._connection.peer}: bad transfer id")

    def _lead(self, transfer: bytes, arrival: Arrival) -> None:
        self._led = self._transfers[transfer] = arrival
        arrival.start()

    def _forget(self, transfer: bytes) -> None:
        self._transfers.pop(transfer, None)
        self._led = None

    def _on_data(self, frame: Frame) -> None:
        arrival, chunk = self._arriving(frame.body)
        if chunk.size != frame.head.payload_bytes:
            raise WireError(f"{self._connection.peer}: chunk and payload differ in size")
        arrival.receive(self._connection, chunk)

    def _on_window(self, frame: Frame) -> None:
        place, window = receive_window(self._connection, frame)
        arrival, chunk = self._arriving(place)
        arrival.take(self._connection, chunk, window)

    def _arriving(self, body: list[Any]) -> tuple[Arrival, Chunk]:
        transfer, *packed_chunk = _lists(body, 4)
        arrival = self._transfers.get(transfer) if isinstance(transfer, bytes) else None
        if arrival is None:
            raise TransferError(f"{self._connection.peer}: data for a transfer that is over")
        return arrival, unpack_chunk(packed_chunk, arrival.seal.extent)

    # --- out

    def _on_pull(self, frame: Frame) -> None:
        found = self._find(frame.body, 4)
        if found is not None:
            self._connection.send(Kind.FOUND, [pack_seal(found.seal)])

    def _on_read(self, frame: Frame) -> None:
        found = self._find(frame.body, 7)
        if found is None:
            return
        chunk = unpack_chunk(frame.body[4:], found.seal.extent)
        if chunk.region not in regions_sent(found.seal):
            self._connection.refuse(Refusal.NOT_HERE, f"this copy has no region {chunk.region!r}")
            return
        start = found.offset + found.geometry.offset(chunk.region) + chunk.offset
        window = self._transport.window(found.fd, start, chunk.size) if frame.head.kind is Kind.LOOK else None
        if window is None:
            self._connection.send_data(pack_chunk(chunk), found.fd, start, chunk.size)
        else:
            send_window(self._connection, pack_chunk(chunk), window)

    def _find(self, body: list[Any], count: int) -> FoundCopy | None:
        """Looks the slot up for each read, so that a slot which is freed in between is not read any further."""
        rank, term, n, number = naturals(body, count)[:4]
        version = Version(Generation(term, n), number)
        found = self._callbacks.find(rank, version)
        if found is None:
            self._connection.refuse(Refusal.NOT_HERE, f"no snapshot {version} of rank {rank} here")
        return found


def _lists(body: list[Any], count: int) -> list[Any]:
    if len(body) != count or not all(isinstance(item, list | bytes | int) for item in body):
        raise WireError(f"expected {count} fields")
    return body
