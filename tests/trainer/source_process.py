"""A node that gives a snapshot out, in a process of its own.

    source_process.py FILE GEOMETRY SECRET READS

FILE is a sealed slot. After so many reads it answers none until a line comes in. Prints its address.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from deadpool.protocol.identity import Version
from deadpool.protocol.seal import Geometry
from deadpool.snapshot.arena import Segment
from deadpool.snapshot.slot import read_seal
from deadpool.snapshot.transfer import Found, TransferServer
from deadpool.wire.credentials import Credentials


def main() -> None:
    file, geometry_text, secret, reads = sys.argv[1:]
    geometry = Geometry(**json.loads(geometry_text))
    segment = Segment.create("source", geometry, 1)
    segment.slot(0)[:] = Path(file).read_bytes()
    seal = read_seal(segment.slot(0))
    assert seal is not None
    asked, go_on = list[int](), threading.Event()

    def find(rank: int, version: Version) -> Found:
        asked.append(rank)
        if len(asked) > int(reads):
            go_on.wait()
        return Found(fd=segment.fd, offset=0, seal=seal, geometry=geometry)

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
