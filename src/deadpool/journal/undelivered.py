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
_ROOM = 0.75  # of the bound, that is left after entries were given up: so that they go in batches, not one by one


class Undelivered:
    def __init__(self, on_dropped: Callable[[list[int]], None], limit_bytes: int = WAITING_BYTES) -> None:
        """`on_dropped` is told the steps whose entries were given up because too much waits."""
        self._lock = threading.Lock()
        self._on_dropped, self._limit = on_dropped, limit_bytes
        self._entries: dict[int, Entry] = {}  # by step, in order
        self._lines = bytearray()  # the same as a record carries them: every step takes one, and many may wait
        self._delivered = 0
        self._known = 0  # the first step of which nothing can be said: a final one may be done again and come later

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

    def due(self, begin: int, final: int) -> tuple[list[Entry], int]:
        """The same entries, and the first step that is not covered by them: final ones may be missing here, because
        they are being done again from a version older than what was once final."""
        with self._lock:
            end = min(final, self._known)
            return [entry for step, entry in self._entries.items() if begin <= step < end], end

    def has_final(self, final: int) -> bool:
        with self._lock:
            return next(iter(self._entries), final) < final

    def deliver(self, number: int) -> None:
        """Every sink has the steps below `number`, for good; of those that are being done again that is not known."""
        with self._lock:
            self._delivered = max(self._delivered, min(number, self._known))
            while self._entries and next(iter(self._entries)) < self._delivered:
                self._take_oldest()

    # --- in the boundary record --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return {"delivered": self._delivered, "entries": bytes(self._lines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What this process logged since that record will be logged again. What it knows to be delivered stays so."""
        with self._lock:
            self._delivered = max(self._delivered, state["delivered"])
            self._known = self._delivered
            self._entries.clear()
            self._lines.clear()
            for line in state["entries"].splitlines():
                entry = _entry(line)
                if entry.step >= self._delivered:
                    self._put(entry)

    def _put(self, entry: Entry) -> None:
        """Of a step after all that wait: what is done again was forgotten with the record that was restored."""
        assert entry.step not in self._entries
        self._entries[entry.step] = entry
        self._known = entry.step + 1
        self._lines += _line(entry)

    def _take_oldest(self) -> int:
        step = next(iter(self._entries))
        del self._lines[: len(_line(self._entries.pop(step)))]
        return step

    def _make_room(self) -> list[int]:
        """Gives up the oldest ones. The newest stays, whatever it takes."""
        dropped: list[int] = []
        if len(self._lines) > self._limit:
            while len(self._entries) > 1 and len(self._lines) > _ROOM * self._limit:
                dropped.append(self._take_oldest())
        return dropped


def _line(entry: Entry) -> bytes:
    return f"{entry.step} {entry.time!r} {entry.text}\n".encode()


def _entry(line: bytes) -> Entry:
    step, time, text = line.decode().split(" ", 2)
    return Entry(int(step), float(time), text)
