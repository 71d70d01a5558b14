"""Entries of the journal: what they hold, and which of them wait.

Defines what one rank logs in one step, and the interface of a sink. Owns which values may be logged, and their text.

Values become JSON text when they are logged. The text is made once and travels unchanged in boundary records; equal
bits give equal text. Floats are written by repr; NaN and Infinity are written as Python reads them.

`Undelivered` keeps the entries of one rank that are not known to be delivered. It has a lock, but no thread, file or
clock.

It is a part of the boundary record: an entry of step s is in the record of version s + 1 and in every later one
until it is known to be delivered. Two threads call it. The script's thread adds entries, and takes and restores
records. The delivery thread reads final entries and reports which of them are delivered.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deadpool.errors import ConfigError

STEP_BYTES = 64 << 10
"""The limit for the text of one step's values: they travel in every boundary record until they are delivered."""
_DEPTH = 16
_ACCEPTED = "None, bool, int, float, str, lists and dicts of these, numpy scalars, tensors of one element"


@dataclass(frozen=True, slots=True)
class Run:
    """One rank of one start of a job. Another job that writes to the same destination has another id."""

    id: str
    rank: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What one rank logged in one step. `time` is when the step ended; `text` holds the values as a JSON object."""

    step: int
    time: float
    text: str

    @property
    def values(self) -> dict[str, Any]:
        return dict(json.loads(self.text))


class Sink(Protocol):
    """A destination for journal entries. One thread at a time calls these methods. If one of them raises, whatever it
    raises, the sink is closed, and it is opened again after a pause."""

    def open(self, run: Run) -> None:
        """Is called before the first entry is written, in the process that holds the rank."""

    def write(self, entries: Sequence[Entry]) -> int | None:
        """Writes entries, which come in order of their steps, and skips those that the destination has already.

        Returns None if all of them are durable, else the first step that could still be lost: the entries from that
        step on are passed again until they are durable."""

    def close(self) -> None:
        """Makes everything durable that was written. Is also called after an error, and when the sink is not open."""


class StepDraft:
    """The values of the step in progress."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._texts: dict[str, str] = {}
        self._times: set[str] = set()  # keys of values that may be times
        self._bytes = 2

    def add(self, values: Mapping[str, Any]) -> None:
        """Adds values. A key that was logged before in this step gets the new value. If a value cannot be logged, this
        raises a ConfigError that names its key, and adds none of the values."""
        texts, size = dict(self._texts), self._bytes
        for key, value in values.items():
            text = json.dumps(_plain(value, key, _DEPTH))
            before = texts.get(key)
            size += len(text) - len(before) if before is not None else len(text) + len(json.dumps(key)) + 2
            if size > STEP_BYTES:
                raise ConfigError(
                    f"job.log: {key!r} brings the values of step {self.step} to {size} bytes; the limit is "
                    f"{STEP_BYTES} bytes per step and rank. Log summaries here, and write larger data to your own file"
                )
            texts[key] = text
        self._texts, self._bytes = texts, size
        self._times -= values.keys()
        self._times.update(key for key, value in values.items() if _may_be_time(value, key))

    def values(self) -> Iterator[tuple[str, str, bool]]:
        """Yields each key, the text of its value, and whether this may be a time."""
        for key, text in self._texts.items():
            yield key, text, key in self._times

    def entry(self, time: float) -> Entry | None:
        """Returns the entry of this step, or None if nothing was logged."""
        if not self._texts:
            return None
        text = ",".join(f"{json.dumps(key)}:{text}" for key, text in self._texts.items())
        return Entry(self.step, time, "{" + text + "}")


def numbers_of(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields the numbers among the values; the names of nested ones are written `outer/inner`."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from numbers_of(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            yield f"{prefix}{key}", float(value)


def _may_be_time(value: Any, path: str) -> bool:
    """Times are floats. What a tensor holds was computed, and so was a loss."""
    if isinstance(value, dict):
        return any(_may_be_time(each, f"{path}/{key}") for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return any(_may_be_time(each, path) for each in value)
    return isinstance(value, float) and "loss" not in path.lower()


def _plain(value: Any, path: str, depth: int) -> Any:
    """Converts the value to types of JSON. Raises a ConfigError that names `path` if that is impossible."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth == 0:
        raise ConfigError(f"job.log: {path!r} is nested too deeply, or contains itself")
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{path}[{index}]", depth - 1) for index, each in enumerate(value)]
    if isinstance(value, dict):
        return {_name(key, path): _plain(each, f"{path}[{key!r}]", depth - 1) for key, each in value.items()}
    return _plain(_item(value, path), path, 0)


def _name(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"job.log: {path!r} has the key {key!r}; the keys of a logged dict must be strings")
    return key


def _item(value: Any, path: str) -> Any:
    """Returns the value of a numpy scalar or of a tensor with one element. This waits for a tensor on a device."""
    count = value.numel() if callable(getattr(value, "numel", None)) else getattr(value, "size", None)
    if not callable(getattr(value, "item", None)) or count is None:
        raise ConfigError(f"job.log: {path!r} is a {type(value).__name__}; accepted are {_ACCEPTED}")
    if count != 1:
        raise ConfigError(f"job.log: {path!r} has {count} elements; log one element, or .tolist() if there are few")
    item = value.item()
    if not isinstance(item, (bool, int, float, str)):
        raise ConfigError(f"job.log: {path!r} holds a {type(item).__name__}; accepted are {_ACCEPTED}")
    return item


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
