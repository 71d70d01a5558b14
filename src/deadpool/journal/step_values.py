"""Implements `job.log` and `job.log_to`, in a protected job and under torchrun alike. Owns the values of the step in
progress and the list of sinks. Only the script's thread may call it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from deadpool.errors import ConfigError
from deadpool.journal.entry import Entry, Sink, StepDraft

_METHODS = ("open", "write", "close")


class StepValues:
    def __init__(self) -> None:
        self.sinks: tuple[Sink, ...] = ()
        self._draft: StepDraft | None = None
        self._began = False

    def enter_step(self, number: int) -> None:
        """Begins a step without values, also if the step is done again."""
        self._draft, self._began = StepDraft(number), True

    def leave_step(self) -> StepDraft | None:
        """Ends the step: nothing can be logged in it any more."""
        draft, self._draft = self._draft, None
        return draft

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        if self._draft is None:
            raise ConfigError(
                f"job.log({step}, ...) was called outside of a step: call it inside the block of `with step:`. Logged "
                "values are saved with the state at the end of the block; later ones could be lost with their rank"
            )
        if step != self._draft.step:
            raise ConfigError(
                f"job.log({step}, ...) was called in step {self._draft.step}: values can be logged only in their own "
                "step. Pass the `step` of the loop, and log numbers of your own as values"
            )
        self._draft.add(values)

    def log_to(self, sinks: Sequence[Sink]) -> None:
        if self._began:
            raise ConfigError("job.log_to(...) was called after the first step: call it before the loop")
        for sink in sinks:
            missing = [name for name in _METHODS if not callable(getattr(sink, name, None))]
            if missing:
                raise ConfigError(
                    f"job.log_to({sink!r}): a sink needs the methods {', '.join(_METHODS)}; see deadpool.journal.Sink"
                )
        self.sinks += tuple(sinks)


def finished(draft: StepDraft | None) -> Entry | None:
    """Returns the entry of a step that ends now, or None if nothing was logged in it."""
    return draft.entry(time.time()) if draft is not None else None


def new_run_id() -> str:
    return secrets.token_hex(6)


def ranges(steps: Sequence[int]) -> str:
    """Returns the steps as text for people, for example `3-7, 12`."""
    found: list[list[int]] = []
    for step in sorted(steps):
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
