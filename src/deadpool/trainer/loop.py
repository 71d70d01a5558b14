"""Steps for a training loop that a library owns, where `for step in job.steps(count)` cannot be written.

    loop = job.loop(count)
    while (number := loop.enter()) is not None:
        try:
            library_loop(start_at=number)      # calls loop.next_step() wherever one of its steps begins
        except BaseException as error:
            if not loop.came_back(error):
                raise

The frames of the library stand at some step, and after a fault another one may be due. `next_step` then raises Moved,
which passes through these frames, and the library's loop is entered again. All that it keeps in local variables is lost
by that: it has to be able to begin at any step, from protected state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from deadpool.errors import ConfigError


class Moved(BaseException):
    """Another step is due than the one that the library's frames stand at. `came_back` takes it."""


class StepLoop:
    """`generation` tells one stretch without a fault from the next."""

    def __init__(self, steps: Generator[Any, None, None], generation: Callable[[], object]) -> None:
        self._steps, self._generation = steps, generation
        self._open: Any = None
        self._due: Any = None  # yielded, and not begun
        self._entered_at: Any = None  # the step that the library's loop was told to begin with
        self._follows: tuple[int, bool, object] | None = None  # the step that frames stand at when the open one ends

    def enter(self) -> int | None:
        """Ends the step that is open, and returns the number of the one that is due; None: every rank has completed
        all of them. The library's loop has to begin there."""
        if self._due is None:
            self._end_open()
            self._due = next(self._steps, None)
        self._entered_at = self._due
        return self._due.number if self._due is not None else None

    def next_step(self) -> Any:
        """Ends the step that is open, and begins the next one, as `with step:` does."""
        if self._due is None:
            self._end_open()
            self._due = next(self._steps, None)
            if self._due is None:
                raise ConfigError("the loop asked for one more step after the last one: job.loop(count) was told fewer")
        step = self._due
        if step is not self._entered_at and (step.number, step.dry, self._generation()) != self._follows:
            raise Moved
        self._due = self._entered_at = None
        self._follows = (step.number + 1, step.dry, self._generation())
        step.__enter__()
        self._open = step
        return step

    @property
    def step(self) -> Any:
        """The step that is open; None: none is."""
        return self._open

    def came_back(self, error: BaseException) -> bool:
        """Whether a fault, or a step that has moved, is behind this exception: then `enter` says where to go on."""
        if isinstance(error, Moved):
            return True
        step, self._open = self._open, None
        return step is not None and bool(step.__exit__(type(error), error, error.__traceback__))

    def leave(self) -> None:
        """Ends the open step and the loop, before `count` steps: the library stops early, on all ranks."""
        self._end_open()
        self._steps.close()

    def _end_open(self) -> None:
        step, self._open = self._open, None
        if step is not None:
            step.__exit__(None, None, None)
