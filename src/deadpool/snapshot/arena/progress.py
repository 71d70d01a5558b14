"""Publishes how much of an arriving snapshot is in its slot, in the slot's header page, which other processes map too.

There is one word per region: the number of the attempt, and how many leading bytes have arrived. The node's agent
writes the words; the trainer that the snapshot is for reads them before the snapshot is verified. What the trainer has
loaded by these words counts only after the agent has verified the whole snapshot against its seal.

An agent never uses the number of an attempt twice. So a trainer that reads the same number before and after a copy has
copied bytes of that attempt, whatever happened to the slot in between, and old words do no harm.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from deadpool.snapshot.arena.slot import REGIONS, Region

_START = 2048  # offset in the header page, far behind the seal
_WORD_BYTES = 8
_BYTES_BITS = 44


@dataclass(frozen=True, slots=True)
class Arrived:
    """The first `leading_bytes` of a region have arrived in this attempt."""

    attempt: int
    leading_bytes: int


class Progress:
    """The words of one slot. Each word is read or written by one instruction, so it is never torn."""

    def __init__(self, slot: memoryview) -> None:
        self._lock = threading.Lock()
        self._words = slot[_START : _START + len(REGIONS) * _WORD_BYTES].cast("Q")

    def publish(self, name: Region, arrived: Arrived) -> None:
        self._keep_order()  # the bytes are in the slot before the word is
        self._words[REGIONS.index(name)] = arrived.attempt << _BYTES_BITS | arrived.leading_bytes

    def read(self, name: Region) -> Arrived:
        word = self._words[REGIONS.index(name)]
        self._keep_order()  # the bytes are read after the word was
        return Arrived(word >> _BYTES_BITS, word & ((1 << _BYTES_BITS) - 1))

    def _keep_order(self) -> None:
        """Is a memory barrier, for processors that reorder accesses: it releases a lock and acquires it again."""
        for _ in range(2):
            with self._lock:
                pass
