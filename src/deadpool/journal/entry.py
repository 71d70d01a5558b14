"""Defines what one rank logs in one step, and the interface of a sink. Owns which values may be logged, and their text.

Values become JSON text when they are logged. The text is made once and travels unchanged in boundary records; equal
bits give equal text. Floats are written by repr; NaN and Infinity are written as Python reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
