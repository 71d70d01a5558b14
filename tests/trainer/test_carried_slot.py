"""The slot of a carried rank gets its carrier's tensors, while the script's thread goes on."""

from __future__ import annotations

import threading
import time

import numpy as np

from deadpool.protocol.seal import Geometry
from deadpool.trainer.capture_tasks import CarriedSlot

MIB = 1 << 20


def filled(unique: int, replica: int) -> tuple[CarriedSlot, np.ndarray, Geometry]:
    """The record of a carried rank may be of another size than its carrier's, hence its regions begin elsewhere."""
    theirs = Geometry(record_capacity=8192, unique_bytes=unique, replica_bytes=replica)
    mine = Geometry(record_capacity=65536, unique_bytes=unique, replica_bytes=replica)
    source = np.resize(np.arange(251, dtype=np.uint8), mine.slot_bytes)
    target = memoryview(bytearray(theirs.slot_bytes))
    return CarriedSlot(1, target, theirs, b"its record"), source, mine


def region(slot: memoryview, geometry: Geometry, name: str, size: int) -> bytes:
    start = geometry.offset(name)  # type: ignore[arg-type]
    return bytes(slot[start : start + size])


def test_tensors_are_the_carriers_and_the_record_is_its_own():
    for unique, replica in ((0, 10_000), (5_000, 10_000), (5_000, 0)):
        place, source, geometry = filled(unique, replica)
        place.fill(memoryview(source), geometry)
        for name, size in (("unique", unique), ("replica", replica)):
            found = region(place.slot, place.geometry, name, size)
            assert found == region(memoryview(source), geometry, name, size)
        assert region(place.slot, place.geometry, "record", 10) == b"its record"


def test_another_thread_runs_while_a_large_slot_is_filled():
    place, source, geometry = filled(0, 256 * MIB)
    times: list[float] = []
    ended = threading.Event()

    def run_on() -> None:
        while not ended.is_set():
            times.append(time.perf_counter())
            time.sleep(0)

    thread = threading.Thread(target=run_on)
    thread.start()
    began = time.perf_counter()
    place.fill(memoryview(source), geometry)
    end = time.perf_counter()
    ended.set()
    thread.join()
    assert sum(began < each < end for each in times) > 20
