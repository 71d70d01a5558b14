"""Keeps the entries of one rank that are not known to be delivered. It has a lock, but no thread, file or clock.

It is a part of the boundary record: an entry of step s is in the record of version s + 1 and in every later one until
it is known to be delivered. Two threads call it. The script's thread adds entries, and takes and restores records. The
delivery thread reads final entries and reports which of them are delivered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from deadpool.journal.entry import Entry

WAITING_BYTES = 4 << 20
"""The limit for all waiting entries: a full or unreachable destination must not make boundary records ever larger."""
_SHRINK_TO = 0.75  # share of the limit to shrink to once it is exceeded, so that entries are dropped in batches


class Undelivered:
    def __init__(self, on_dropped: Callable[[list[int]], None], limit_bytes: int = WAITING_BYTES) -> None:
        """`on_dropped` is called with the steps whose entries were dropped because too many wait."""
        self._lock = threading.Lock()
        self._on_dropped, self._limit = on_dropped, limit_bytes
        self._entries: dict[int, Entry] = {}  # by step, in order
        self._lines = bytearray()  # the same as text, kept ready because every step takes a record of it
        self._delivered = 0
        self._known = 0  # the first step that may still come: after a rollback a final step may be done again

    @property
    def delivered(self) -> int:
        """Returns the first step that is not known to be delivered."""
        return self._delivered

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def add(self, entry: Entry) -> None:
        """Adds an entry, unless its step is known to be delivered: such a step was done again after a rollback to a
        version older than one that was final."""
        with self._lock:
            if entry.step < self._delivered:
                return
            self._put(entry)
            dropped = self._make_room()
        if dropped:
            self._on_dropped(dropped)

    def final(self, begin: int, final: int) -> list[Entry]:
        """Returns the entries of the steps from `begin` to `final`, exclusive, in order."""
        with self._lock:
            return [entry for step, entry in self._entries.items() if begin <= step < final]

    def due(self, begin: int, final: int) -> tuple[list[Entry], int]:
        """Returns the same entries and the first step that they do not cover. Entries of final steps may be missing
        here while these steps are done again after a rollback."""
        with self._lock:
            end = min(final, self._known)
            return [entry for step, entry in self._entries.items() if begin <= step < end], end

    def has_final(self, final: int) -> bool:
        with self._lock:
            return next(iter(self._entries), final) < final

    def deliver(self, number: int) -> None:
        """Records that the steps below `number` are durable in every sink, except those that are being done again."""
        with self._lock:
            self._delivered = max(self._delivered, min(number, self._known))
            while self._entries and next(iter(self._entries)) < self._delivered:
                self._take_oldest()

    # --- in the boundary record --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return {"delivered": self._delivered, "entries": bytes(self._lines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes back to a record. Entries that were added since then will be logged again; what is known to be delivered
        stays delivered."""
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
        """Puts an entry behind all waiting ones. Its step comes after theirs: restoring a record has removed the
        entries of steps done again.
        """
        assert entry.step not in self._entries
        self._entries[entry.step] = entry
        self._known = entry.step + 1
        self._lines += _line(entry)

    def _take_oldest(self) -> int:
        step = next(iter(self._entries))
        del self._lines[: len(_line(self._entries.pop(step)))]
        return step

    def _make_room(self) -> list[int]:
        """Drops the oldest entries, but never the newest one, however large it is. Returns the dropped steps."""
        dropped: list[int] = []
        if len(self._lines) > self._limit:
            while len(self._entries) > 1 and len(self._lines) > _SHRINK_TO * self._limit:
                dropped.append(self._take_oldest())
        return dropped


def _line(entry: Entry) -> bytes:
    return f"{entry.step} {entry.time!r} {entry.text}\n".encode()


def _entry(line: bytes) -> Entry:
    step, time, text = line.decode().split(" ", 2)
    return Entry(int(step), float(time), text)
