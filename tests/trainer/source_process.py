"""A node that gives a snapshot out, in a process of its own.

    source_process.py FILE GEOMETRY SECRET BYTES

FILE is a sealed slot. It gives the first so many bytes of a region, whichever of its streams they are asked for by, and
nothing behind them until a line comes in. Prints its address.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from deadpool.protocol.identity import Version
from deadpool.protocol.seal import Geometry
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import read_seal
from deadpool.snapshot.transfer import FoundCopy, TransferServer
from deadpool.snapshot.transfer.connection import Connection
from deadpool.wire.credentials import Credentials


def hold_back(given_bytes: int) -> threading.Event:
    """Every connection of this process waits for the event before it sends a chunk behind these bytes."""
    go_on, send_data = threading.Event(), Connection.send_data

    def send_when_given(self: Connection, body: list[Any], *rest: Any) -> None:
        _, offset, size = body
        if offset + size > given_bytes:
            go_on.wait()
        send_data(self, body, *rest)

    Connection.send_data = send_when_given  # type: ignore[method-assign]
    return go_on


def main() -> None:
    file, geometry_text, secret, given_bytes = sys.argv[1:]
    geometry = Geometry(**json.loads(geometry_text))
    segment = Segment.create("source", geometry, 1)
    segment.slot(0)[:] = Path(file).read_bytes()
    seal = read_seal(segment.slot(0))
    assert seal is not None
    go_on = hold_back(int(given_bytes))

    def find(rank: int, version: Version) -> FoundCopy:
        return FoundCopy(fd=segment.fd, offset=0, seal=seal, geometry=geometry)

    server = TransferServer(
        host="127.0.0.1",
        credentials=Credentials(bytes.fromhex(secret)),
        open=lambda *_: memoryview(b""),
        stored=lambda _: None,
        dropped=lambda *_: None,
        find=find,
    )
    print(json.dumps(server.start()), flush=True)
    if sys.stdin.readline():
        go_on.set()
    sys.stdin.read()
    os._exit(0)


main()
