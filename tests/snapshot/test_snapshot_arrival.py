from __future__ import annotations

import contextlib
import threading

from snapshot_nodes import EXTENT, GEOMETRY, VERSION, WAIT_S

from deadpool.errors import TransferError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.seal import Digest, Seal
from deadpool.snapshot.arena.slot import read_seal
from deadpool.snapshot.transfer.callbacks import Callbacks, TransferRefused
from deadpool.snapshot.transfer.frames import chunks_of
from deadpool.snapshot.transfer.snapshot_arrival import SnapshotArrival

SEAL = Seal(rank=1, version=VERSION, extent=EXTENT, digest=Digest(record=0, unique=0, replica=0), full=True)


class SlowStream:
    """The twin of a Connection whose reader waits in the kernel until the test releases it."""

    peer = "slow"

    def __init__(self) -> None:
        self.inside, self.cut_by, self.release = threading.Event(), "", threading.Event()

    def send(self, kind, body) -> None:
        pass

    def cut(self, reason: str) -> None:
        self.cut_by = reason

    def refuse(self, refusal: Refusal, reason: str) -> None:
        pass

    def receive_pieces(self, view: memoryview) -> list[int]:
        self.inside.set()
        assert self.release.wait(WAIT_S)
        view[0] = 1
        raise TransferError("cut")


def test_slot_is_not_dropped_while_a_stream_still_writes_into_it():
    dropped, lead, second = [], SlowStream(), SlowStream()
    callbacks = Callbacks(
        open=lambda *_: TransferRefused(refusal=Refusal.UNANSWERED),
        stored=lambda seal: None,
        dropped=lambda seal, reason: dropped.append(reason),
        find=lambda *_: None,
    )
    slot = memoryview(bytearray(GEOMETRY.slot_bytes))
    arrival = SnapshotArrival(
        seal=SEAL, geometry=GEOMETRY, view=slot, lead=lead, callbacks=callbacks, forget=lambda: None
    )

    def write() -> None:
        with contextlib.suppress(TransferError):
            arrival.receive(second, chunks_of(EXTENT, ("unique",))[0])

    writer = threading.Thread(target=write)
    writer.start()
    assert second.inside.wait(WAIT_S)
    arrival.fail("the lead died")
    assert second.cut_by == "the lead died"
    assert dropped == []
    second.release.set()
    writer.join(WAIT_S)
    assert dropped == ["the lead died"]
    assert read_seal(slot) is None
