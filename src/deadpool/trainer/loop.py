"""The loop over steps: its rules, a loop that a library owns, and optimizers that run forward themselves.

`Moved` and `StepLoop`: Steps for a training loop that a library owns, where `for step in job.steps(count)` cannot be
written.

    loop = job.loop(count)
    while (number := loop.enter()) is not None:
        try:
            library_loop(start_at=number)      # calls loop.next_step() wherever one of its steps begins
        except BaseException as error:
            if not loop.came_back(error):
                raise

The frames of the library stand at some step, and after a fault another one may be due. `next_step` then raises
Moved, which passes through these frames, and the library's loop is entered again. All that it keeps in local
variables is lost by that: it has to be able to begin at any step, from protected state.

`OfferedStep` and `LoopRules`: the rules of the loop over steps. They hold with and without protection, so that a
script that runs under torchrun also runs under DeadPool.

`after_closure`: Optimizers that run forward and backward themselves, in `step(closure)`: LBFGS does, and Lightning
trains that way.

Torch's own optimizers change the state only when their closure has returned. Others may change it before (SAM does,
and some through `.data`, where nobody sees it), so for them an update begins when their step does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

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


class OfferedStep(Protocol):
    number: int
    entered: bool


class LoopRules:
    def __init__(self) -> None:
        self._has_begun = False

    def begin_loop(self) -> None:
        if self._has_begun:
            raise ConfigError(
                "job.steps() was called a second time: a job has one loop, and what comes after it is not protected. "
                "Use one loop over the steps of all epochs: for step in job.steps(epochs * steps_per_epoch): "
                "epoch, index = divmod(step.number, steps_per_epoch)"
            )
        self._has_begun = True

    def check(self, step: OfferedStep) -> None:
        """Called when the script asks for the next step, so not after a `break`."""
        if not step.entered:
            raise ConfigError(
                f"step {step.number} was never entered: put the whole body of the loop into `with step:`, also for a "
                "step in which there is nothing to do (put `continue` inside the block)"
            )


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_TORCHS = ("torch.optim.", "torch.distributed.optim.")


def after_closure(args: tuple[Any, ...], kwargs: dict[str, Any], on_returned: Callable[[], None]) -> Arguments | None:
    """The arguments of an optimizer's step, as its pre-hook gets them, changed so that `on_returned` is called once,
    when the closure has returned. None: it has no closure, or may change the state before."""
    if not _calls_closure_first(type(args[0])):
        return None
    if callable(closure := kwargs.get("closure")):
        return args, {**kwargs, "closure": _ClosureWithCallback(closure, on_returned)}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _ClosureWithCallback(args[1], on_returned), *args[2:]), kwargs
    return None


def _calls_closure_first(kind: type) -> bool:
    """Whether the `step` of this class is one of torch's. A wrapper around it counts as what it wraps."""
    step = getattr(kind, "step", None)
    return getattr(step, "__module__", "").startswith(_TORCHS)


class _ClosureWithCallback:
    def __init__(self, closure: Callable[..., Any], on_returned: Callable[[], None]) -> None:
        self._closure, self._on_returned = closure, on_returned
        self._has_returned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._closure(*args, **kwargs)
        if not self._has_returned:
            self._has_returned = True
            self._on_returned()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._closure, name)  # what a library keeps on its closures
