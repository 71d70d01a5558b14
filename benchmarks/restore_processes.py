"""The two agent processes of restore.py: the holder, and the newcomer's agent.

    restore_processes.py hold GEOMETRY       prints its addresses, then serves until its input ends
    restore_processes.py fetch GEOMETRY FD   does what its input says, one word per line, and prints seconds

The environment contains the secret, and whether TLS is used. The newcomer's arena has two slots: the first one contains
what its trainer captured, the second one what comes back from the holder.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import sys
import time
from collections.abc import Callable

from plain_sockets import STREAMS, receive_all, send_all

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Extent, Geometry, Seal
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import Arrived, Progress, region, write_seal
from deadpool.snapshot.transfer import FoundCopy, PullRequest, PushRequest, TransferClient, TransferServer
from deadpool.wire.credentials import read_credentials
from deadpool_lab.workload.sealed_slot import seal_slot

GENERATION = Generation(1, 1)
VERSION = Version(GENERATION, 1)
CAPTURED, FETCHED = 0, 1


def hold(geometry: Geometry) -> None:
    segment = Segment.create("bench-held", geometry, 1)
    segment.prefault()
    held: list[Seal] = []
    server = TransferServer(
        host="127.0.0.1",
        credentials=read_credentials(serving=True),
        open=lambda seal, generation, geometry: segment.slot(0),
        stored=held.append,
        dropped=lambda seal, reason: print(reason, file=sys.stderr),
        find=lambda rank, version: FoundCopy(fd=segment.fd, offset=0, seal=held[-1], geometry=geometry),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps([server.start(), listener.getsockname()]), flush=True)
    socks = [listener.accept()[0] for _ in range(STREAMS)]
    while sys.stdin.readline():  # for each line, send the held bytes over the plain sockets
        with bulk_of(segment, 0) as bulk:
            send_all(socks, bulk)
    server.close()


class Fetcher:
    """The newcomer's agent. It shares its arena with the trainer."""

    def __init__(self, geometry: Geometry, segment: Segment) -> None:
        self._geometry, self._segment = geometry, segment
        self._client = TransferClient(credentials=read_credentials())
        self._seal: Seal | None = None
        self._attempts = itertools.count(1)
        self._address, plain = (tuple(each) for each in json.loads(sys.stdin.readline()))
        self._socks = [socket.create_connection(plain) for _ in range(STREAMS)]

    def seal(self, record_bytes: int) -> None:
        extent = Extent(record_bytes=record_bytes, unique_bytes=self._geometry.unique_bytes, replica_bytes=0)
        self._seal = seal_slot(self._segment.slot(CAPTURED), self._geometry, rank=0, version=VERSION, extent=extent)

    def push(self) -> None:
        assert self._seal is not None
        request = PushRequest(
            address=self._address,
            generation=GENERATION,
            seal=self._seal,
            geometry=self._geometry,
            fd=self._segment.fd,
            slot_offset=0,
            full=True,
        )
        self._client.push(request)

    def pull(self) -> None:
        assert self._seal is not None
        slot = self._segment.slot(FETCHED)
        progress, attempt = Progress(slot), next(self._attempts)
        request = PullRequest(
            address=self._address,
            generation=GENERATION,
            rank=0,
            version=VERSION,
            regions=("record", "unique"),
            digest=self._seal.digest,
            geometry=self._geometry,
            into=slot,
        )
        seal = self._client.pull(request, lambda name, leading: progress.publish(name, Arrived(attempt, leading)))
        write_seal(slot, seal)

    def plain(self) -> None:
        with bulk_of(self._segment, FETCHED) as bulk:
            receive_all(self._socks, bulk)

    def close(self) -> None:
        self._client.close()
        for sock in self._socks:
            sock.close()


def fetch(geometry: Geometry, fd: int) -> None:
    fetcher = Fetcher(geometry, Segment.attach(fd, geometry, 2))
    for line in sys.stdin:
        word, *numbers = line.split()
        work: Callable[..., None] = getattr(fetcher, word)
        began = time.perf_counter()
        work(*map(int, numbers))
        print(json.dumps(time.perf_counter() - began), flush=True)
    fetcher.close()


def bulk_of(segment: Segment, index: int) -> contextlib.AbstractContextManager[memoryview]:
    geometry = segment.geometry
    extent = Extent(record_bytes=0, unique_bytes=geometry.unique_bytes, replica_bytes=0)
    return region(segment.slot(index), geometry, extent, "unique")


def main() -> None:
    role, geometry_text, *more = sys.argv[1:]
    geometry = Geometry(**json.loads(geometry_text))
    if role == "hold":
        hold(geometry)
    else:
        fetch(geometry, int(more[0]))


if __name__ == "__main__":
    main()
