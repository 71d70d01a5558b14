"""The frames of windows: how one is shown and taken, for a client and a server alike.

    WINDOW -> TAKEN|AGAIN     in a push, in place of DATA: AGAIN asks for the same chunk as DATA
    LOOK   -> WINDOW|DATA     in a pull, in place of READ, by a reader that can read windows; READ asks for bytes

The metadata of a window are the payload of its frame.
"""

from __future__ import annotations

from typing import Any

from deadpool.errors import WireError
from deadpool.snapshot.arena.checksums import checksum, pieces
from deadpool.snapshot.transfer.connection import Connection, Midway
from deadpool.snapshot.transfer.frames import Chunk, Frame, Kind, pack_chunk
from deadpool.snapshot.transfer.transport import Transport, Window

SOURCE_BYTES = 16
_ADDRESS_LIMIT = 1 << 63


def send_window(connection: Connection, place: list[Any], window: Window) -> None:
    """`place` says of what it is, as in the body of DATA."""
    connection.send_list(Kind.WINDOW, [*place, window.source, window.address], window.metadata)


def receive_window(connection: Connection, frame: Frame) -> tuple[list[Any], Window]:
    """What a WINDOW is of, and the window; or WireError."""
    *place, source, address = frame.body if len(frame.body) > 2 else ["", "", ""]
    if type(source) is not bytes or len(source) != SOURCE_BYTES:
        raise WireError(f"{connection.peer}: expected a window")
    if type(address) is not int or not 0 <= address < _ADDRESS_LIMIT:
        raise WireError(f"{connection.peer}: no address {address!r:.50}")
    metadata = connection.receive_list(frame, frame.head.payload_bytes)
    return place, Window(source=source, metadata=bytes(metadata), address=address)


def read_window(transport: Transport, connection: Connection, window: Window, into: memoryview) -> list[int] | None:
    """The digests of the pieces that were read; None: the bytes have to come over the stream."""
    if not transport.read(window, into, lambda: not connection.is_cut):
        return None
    return [checksum(piece) for piece in pieces(into)]


def show(connection: Connection, transfer: bytes, chunk: Chunk, window: Window, midway: Midway | None) -> bool:
    """Offers a chunk of a push. Returns whether the peer has read it; if not, it wants the bytes."""
    if midway is not None:
        midway.act()
    send_window(connection, [transfer, *pack_chunk(chunk)], window)
    taken = connection.expect(Kind.TAKEN, Kind.AGAIN).head.kind is Kind.TAKEN
    if taken:
        connection.count(chunk.size)
    return taken
