"""What `job.log` and `job.log_to` do, in a protected job and under torchrun alike: the values of the step in progress,
and where they go. The script's thread only."""

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
        """A step that is done again begins with nothing."""
        self._draft, self._began = StepDraft(number), True

    def leave_step(self) -> StepDraft | None:
        """From here on nothing more is taken for the step."""
        draft, self._draft = self._draft, None
        return draft

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        if self._draft is None:
            raise ConfigError(
                f"job.log({step}, ...) outside of a step: call it inside the block of `with step:`. What is logged "
                "travels with the state at the end of the block; made later, the entry could be lost with its rank"
            )
        if step != self._draft.step:
            raise ConfigError(
                f"job.log({step}, ...) in step {self._draft.step}: values are logged in the step that they belong to, "
                "so pass the `step` of the loop, and your own numbers as values"
            )
        self._draft.add(values)

    def log_to(self, sinks: Sequence[Sink]) -> None:
        if self._began:
            raise ConfigError("job.log_to(...) after the first step: say before the loop where values go")
        for sink in sinks:
            missing = [name for name in _METHODS if not callable(getattr(sink, name, None))]
            if missing:
                raise ConfigError(
                    f"job.log_to({sink!r}): a sink has the methods {', '.join(_METHODS)}; see deadpool.journal"
                )
        self.sinks += tuple(sinks)


def finished(draft: StepDraft | None) -> Entry | None:
    """The entry of a step that ends now; None if nothing was logged in it."""
    return draft.entry(time.time()) if draft is not None else None


def new_run_id() -> str:
    return secrets.token_hex(6)


def ranges(steps: Sequence[int]) -> str:
    """`3-7, 12`, for people."""
    found: list[list[int]] = []
    for step in sorted(steps):
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
