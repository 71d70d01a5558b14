"""What is logged in one step of one rank, and who takes it. Owns which values may be logged and how they are written.

Values are kept as JSON text from the moment they are logged: the text is made once, travels in boundary records as it
is, and equal bits give equal text. Floats are written by repr; NaN and Infinity are written as Python reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deadpool.errors import ConfigError

STEP_BYTES = 64 << 10
"""Of the values of one step, as text. They travel with every boundary record until they are delivered."""
_DEPTH = 16
_ACCEPTED = "None, bool, int, float, str, lists and dicts of these, numpy scalars, tensors of one element"


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a job's script, and one rank of it. Another job that writes to the same place has another id."""

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
    """Called by one thread at a time. Whatever these raise: the sink is closed, and opened again after a pause."""

    def open(self, run: Run) -> None:
        """Before the first entry is written, in the process that holds the rank."""

    def write(self, entries: Sequence[Entry]) -> int | None:
        """Takes entries in order of their steps, and skips those that the destination has, or was handed before.

        Returns None if all of them are durable, else the first step that could still be lost: that one and those after
        it are given again, until they are durable."""

    def close(self) -> None:
        """What was written is durable when this returns. Called also after an error, and also if it is not open."""


class StepDraft:
    """The values of the step in progress."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._texts: dict[str, str] = {}
        self._bytes = 2

    def add(self, values: Mapping[str, Any]) -> None:
        """A key that was logged before in this step gets the later value. ConfigError names the key, and then nothing
        of this call counts."""
        texts, size = dict(self._texts), self._bytes
        for key, value in values.items():
            text = json.dumps(_plain(value, key, _DEPTH))
            before = texts.get(key)
            size += len(text) - len(before) if before is not None else len(text) + len(json.dumps(key)) + 2
            if size > STEP_BYTES:
                raise ConfigError(
                    f"job.log: {key!r} brings the values of step {self.step} to {size} bytes, {STEP_BYTES} are taken "
                    "per step and rank. Log summaries here, and write what is larger to a file of your own"
                )
            texts[key] = text
        self._texts, self._bytes = texts, size

    def entry(self, time: float) -> Entry | None:
        """None: nothing was logged."""
        if not self._texts:
            return None
        text = ",".join(f"{json.dumps(key)}:{text}" for key, text in self._texts.items())
        return Entry(self.step, time, "{" + text + "}")


def numbers_of(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers among the values, those of nested dicts as `outer/inner`."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from numbers_of(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            yield f"{prefix}{key}", float(value)


def _plain(value: Any, path: str, depth: int) -> Any:
    """The value in types that JSON has; ConfigError that names `path` if there are none."""
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
        raise ConfigError(f"job.log: {path!r} has the key {key!r}: keys of a dict that is logged are strings")
    return key


def _item(value: Any, path: str) -> Any:
    """Of a numpy scalar or a tensor of one element; a tensor on a device is waited for here."""
    count = value.numel() if callable(getattr(value, "numel", None)) else getattr(value, "size", None)
    if not callable(getattr(value, "item", None)) or count is None:
        raise ConfigError(f"job.log: {path!r} is a {type(value).__name__}; {_ACCEPTED} can be logged")
    if count != 1:
        raise ConfigError(f"job.log: {path!r} has {count} elements: log one, or .tolist() if there are few")
    item = value.item()
    if not isinstance(item, (bool, int, float, str)):
        raise ConfigError(f"job.log: {path!r} holds a {type(item).__name__}; {_ACCEPTED} can be logged")
    return item
