"""The slot of a carried rank gets its carrier's tensors, while the script's thread goes on."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import numpy as np
from waiting import wait_until

from deadpool.protocol.seal import Geometry
from deadpool.trainer.capture.capture_tasks import CarriedSlot

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
    """It never pauses for as long as half of a fill, if the machine lets it run: one fill of several shows it."""
    place, source, geometry = filled(0, 256 * MIB)

    def longest_pause_share() -> float:
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
        moments = [began, *(each for each in times if began < each < end), end]
        return max(late - early for early, late in pairwise(moments)) / (end - began)

    wait_until(lambda: longest_pause_share() < 0.5, "a fill beside which the other thread ran")
