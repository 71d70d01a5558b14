"""A snapshot that came from another node goes to all members of its group at once, and is hashed once for that."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from coded_access import coded_copies_for
from waiting import wait_until

from deadpool.control.coding import coded_copies
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import SlotRef
from deadpool.protocol.seal import Extent, Geometry, Seal
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import compute_piece_digests
from deadpool.snapshot.transfer import TransferClient
from deadpool.wire.credentials import read_credentials

GEOMETRY = Geometry(record_capacity=64, unique_bytes=4096, replica_bytes=0)
EXTENT = Extent(record_bytes=64, unique_bytes=4096, replica_bytes=0)
SLOT = SlotRef(segment=0, index=0)
MEMBERS = 4


def test_hashed_once_for_all_members(monkeypatch):
    monkeypatch.setenv("DEADPOOL_SECRET", "00" * 32)
    segment = Segment.create("test-digests", GEOMETRY, 1)
    digest = compute_piece_digests(segment.slot(0), GEOMETRY, EXTENT).digest
    seal = Seal(rank=0, version=Version(Generation(1, 1), 1), extent=EXTENT, digest=digest, full=True)
    two_at_once, asking, computed = threading.Barrier(2), [], []

    def compute(*arguments):
        computed.append(1)
        wait_until(lambda: len(asking) == MEMBERS, "all members' questions")
        with contextlib.suppress(threading.BrokenBarrierError):
            two_at_once.wait(0.2)  # a second one would come now
        return compute_piece_digests(*arguments)

    monkeypatch.setattr(coded_copies, "compute_piece_digests", compute)
    client = TransferClient(credentials=read_credentials())
    with ThreadPoolExecutor(1) as hashers, ThreadPoolExecutor(MEMBERS) as movers:
        coded = coded_copies_for(client, segment, hashers, print)

        def ask():
            asking.append(1)
            return coded._digests_of(SLOT, seal, GEOMETRY)

        asked = [movers.submit(ask) for _ in range(MEMBERS)]
        found = [each.result().digest for each in asked]
    client.close()
    segment.close()
    assert found == [digest] * MEMBERS and len(computed) == 1
