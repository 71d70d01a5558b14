"""The job of a loop that a library owns. `protect` of its integration returns it before the library has built anything.

The integration calls `begin` before the first step. From then on it is the job that `deadpool.protect` has made, but
without steps of its own. A callback of the library that is called in a step is the place for `log`.
"""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, SupportsIndex

from deadpool.errors import ConfigError
from deadpool.journal.entry import Sink
from deadpool.journal.step_values import UnprotectedJournal
from deadpool.trainer import current
from deadpool.trainer.interface import Job, Step
from deadpool.trainer.loop import StepLoop


class LibraryJob:
    """`call` is how a script starts the library's loop, for messages."""

    def __init__(self, call: str) -> None:
        self._call = call
        self._job: Job | None = None
        self._enabled = True
        self._sinks: tuple[Sink, ...] = ()

    def begin(self, job: Job) -> None:
        """What was set before holds for `job`, whose loop has not begun."""
        self._job = job
        job.enabled = self._enabled
        job.log_to(*self._sinks)

    @property
    def enabled(self) -> bool:
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._enabled = value
        if self._job is not None:
            self._job.enabled = value

    @property
    def rehearses(self) -> bool:
        return current.session is not None and current.session.groups.detached

    def steps(self, count: int) -> Iterator[Step]:
        _refuse_steps(self._call)

    def loop(self, count: int | Callable[[], int]) -> StepLoop:
        _refuse_steps(self._call)

    def pause(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return self._job.pause(reason) if self._job is not None else contextlib.nullcontext()

    def log(self, step: SupportsIndex, /, **values: Any) -> None:
        self._begun("log").log(step, **values)

    def log_to(self, *sinks: Sink) -> None:
        if self._job is not None:
            self._job.log_to(*sinks)
        self._sinks += sinks

    def on_final(self, step: SupportsIndex, action: Callable[[], None]) -> None:
        self._begun("on_final").on_final(step, action)

    def durable(self, step: int, path: str | os.PathLike[str]) -> None:
        self._begun("durable").durable(step, path)

    def digest(self) -> str:
        return self._begun("digest").digest()

    def _begun(self, method: str) -> Job:
        if self._job is None:
            raise ConfigError(f"job.{method}() was called before the first step: {self._call} begins it")
        return self._job


class UnprotectedLibraryJob:
    """The same in a script that DeadPool did not start. Nobody says where the library's steps begin and end, so the
    values of a step are written when another step logs, or the process ends."""

    enabled = False
    rehearses = False

    def __init__(self, call: str) -> None:
        self._call = call
        self._journal = UnprotectedJournal(int(os.environ.get("RANK", "0")))
        self._logged: int | None = None  # the step whose values are not written yet
        self._closes = False

    def steps(self, count: int) -> Iterator[Step]:
        _refuse_steps(self._call)

    def loop(self, count: int | Callable[[], int]) -> StepLoop:
        _refuse_steps(self._call)

    def pause(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def log(self, step: SupportsIndex, /, **values: Any) -> None:
        number = operator.index(step)
        if not self._closes:
            self._closes = True
            atexit.register(self.close)
        if number != self._logged:
            self._end_step()
            self._journal.enter_step(number)
            self._logged = number
        self._journal.log(number, values)

    def log_to(self, *sinks: Sink) -> None:
        self._journal.log_to(sinks)

    def on_final(self, step: SupportsIndex, action: Callable[[], None]) -> None:
        """Calls the action at once: without recovery a step is final as soon as it is computed."""
        action()

    def durable(self, step: int, path: str | os.PathLike[str]) -> None:
        """There is no job that could name the checkpoint."""

    def digest(self) -> str:
        raise ConfigError("job.digest() is of protected objects, and this script was not started by `deadpool run`")

    def close(self) -> None:
        self._end_step()
        self._journal.close()

    def _end_step(self) -> None:
        if self._logged is not None:
            self._journal.leave_step(completed=True)
            self._logged = None


def _refuse_steps(call: str) -> NoReturn:
    raise ConfigError(f"the steps of this job are those of the library's own loop: call {call}")
