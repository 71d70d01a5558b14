"""The entries of one rank that are not known to be delivered. A value with a lock: no thread, no file, no clock.

It is a part of the boundary record: entries of step s are in the record of version s + 1 and in every later one until
they are known to be delivered. Two threads call it: the script's logs, completes steps, takes and restores records; the
one that delivers takes what is final and says how far it came.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from deadpool.journal.entry import Entry

WAITING_BYTES = 4 << 20
"""Of all waiting entries. A destination that is full or away must not fill the records of a whole job."""
_ENTRY_BYTES = 32  # of an entry beside its text, in a record
_ROOM = 0.75  # of the bound, that is left after entries were given up: so that they go in batches, not one by one


class Waiting:
    def __init__(self, on_dropped: Callable[[list[int]], None], limit_bytes: int = WAITING_BYTES) -> None:
        """`on_dropped` is told the steps whose entries were given up because too much waits."""
        self._lock = threading.Lock()
        self._on_dropped, self._limit = on_dropped, limit_bytes
        self._entries: dict[int, Entry] = {}  # by step, in order
        self._bytes = 0
        self._delivered = 0

    @property
    def delivered(self) -> int:
        """The first step that is not known to be delivered."""
        return self._delivered

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def add(self, entry: Entry) -> None:
        """A step that is known to be delivered was done again, from a version older than what was once final."""
        with self._lock:
            if entry.step < self._delivered:
                return
            self._put(entry)
            dropped = self._make_room()
        if dropped:
            self._on_dropped(dropped)

    def final(self, begin: int, final: int) -> list[Entry]:
        """Entries of the steps from `begin` on that are final, that is below `final`, in order."""
        with self._lock:
            return [entry for step, entry in self._entries.items() if begin <= step < final]

    def has_final(self, final: int) -> bool:
        with self._lock:
            return next(iter(self._entries), final) < final

    def deliver(self, number: int) -> None:
        """Every sink has the steps below `number`, for good."""
        with self._lock:
            self._delivered = max(self._delivered, number)
            self._forget(lambda step: step < self._delivered)

    # --- in the boundary record --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            entries = [[entry.step, entry.time, entry.text] for entry in self._entries.values()]
            return {"delivered": self._delivered, "entries": entries}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What this process logged since that record will be logged again. What it knows to be delivered stays so."""
        with self._lock:
            self._delivered = max(self._delivered, state["delivered"])
            self._forget(lambda _: True)
            for step, time, text in state["entries"]:
                if step >= self._delivered:
                    self._put(Entry(step, time, text))

    def _put(self, entry: Entry) -> None:
        self._forget(lambda step: step == entry.step)
        self._entries[entry.step] = entry
        self._bytes += _size(entry)

    def _forget(self, which: Callable[[int], bool]) -> None:
        for step in [step for step in self._entries if which(step)]:
            self._bytes -= _size(self._entries.pop(step))

    def _make_room(self) -> list[int]:
        """Gives up the oldest ones. The newest stays, whatever it takes."""
        if self._bytes <= self._limit:
            return []
        dropped = []
        for step in list(self._entries)[:-1]:
            if self._bytes <= _ROOM * self._limit:
                break
            self._bytes -= _size(self._entries.pop(step))
            dropped.append(step)
        return dropped


def _size(entry: Entry) -> int:
    return len(entry.text) + _ENTRY_BYTES
