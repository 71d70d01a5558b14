"""How much of a snapshot on its way into a slot is there: words in the slot's header page, for who shares the memory.

One word per region: which attempt its bytes are of, and how many of its leading ones have arrived. Written by the
node's agent, read by the trainer that the snapshot is for, while it is not verified yet: nothing that was read by these
words counts before the agent has said that the whole is as sealed.

An agent never uses the number of an attempt twice. So whoever finds the same one before and after has read bytes of
that attempt, whatever became of the slot in between, and words that an earlier use has left behind mislead nobody.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from deadpool.snapshot.slot import REGIONS, Region

_START = 2048  # in the header page, far behind the seal
_WORD_BYTES = 8
_BYTES_BITS = 44


@dataclass(frozen=True, slots=True)
class Arrived:
    """`leading_bytes` of a region are there, by this attempt."""

    attempt: int
    leading_bytes: int


class Progress:
    """The words of one slot. Each is read and written whole, by one instruction."""

    def __init__(self, slot: memoryview) -> None:
        self._lock = threading.Lock()
        self._words = slot[_START : _START + len(REGIONS) * _WORD_BYTES].cast("Q")

    def tell(self, name: Region, arrived: Arrived) -> None:
        self._keep_order()  # the bytes are there before the word is
        self._words[REGIONS.index(name)] = arrived.attempt << _BYTES_BITS | arrived.leading_bytes

    def look(self, name: Region) -> Arrived:
        word = self._words[REGIONS.index(name)]
        self._keep_order()  # the bytes are read after the word was
        return Arrived(word >> _BYTES_BITS, word & ((1 << _BYTES_BITS) - 1))

    def _keep_order(self) -> None:
        """For machines that reorder accesses to memory: a lock let go (release) and taken again (acquire)."""
        for _ in range(2):
            with self._lock:
                pass
