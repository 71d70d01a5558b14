"""Where a rank is stopped: between two steps, inside a forward pass, or inside a generator.

`await_slot` and `stop_if_asked` stop this rank between two steps when the coordinator asks for it, so that ranks can
move to another node without any step being computed twice.

All ranks capture the version at which they stop. Afterwards the coordinator either fences the job or lets it go on.

`ForwardStop` ends a forward pass that will be done again, at the next call of a module of the protected model.

After an abort every collective raises, but a forward pass of DDP has none: it would go on to its end, and with NCCL,
which raises nothing, the backward pass would follow it. So while an abort is in force, torch calls a hook before the
forward of every module. At all other times there is no hook and no cost.

Other modules are left alone: transforms of a data loader are modules too, and an exception in there could end an
iterator that the script goes on with.

`exhausted_generator` finds a generator that the exception of a fault has ended: from then on it only raises
StopIteration.

A script may read its batches from a generator (`batches = cycle(loader)`) and keep it for all steps. If a collective
fails inside the generator, the exception ends it. The step cannot be redone with it, and a script that takes
StopIteration for the end of an epoch would go on with wrong data. A fresh process makes a new generator.
"""

from __future__ import annotations

import gc
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, GeneratorType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from deadpool.errors import Unwind
from deadpool.protocol.messages import Standing

if TYPE_CHECKING:
    from deadpool.trainer.job import Job


SLOT_WAIT_S = 30.0
"""Limit for the wait for a slot: versions on their way to holders occupy slots and free them when they have arrived."""


def await_slot(job: Job) -> None:
    """Waits for a slot if this version has to be handed over, which is impossible without a capture of it."""
    core = job.session.core
    if core.captures_to_stand:
        job.session.wait(
            lambda: core.has_slots or core.is_aborted or not core.captures_to_stand or None, timeout_s=SLOT_WAIT_S
        )


def stop_if_asked(job: Job) -> bool:
    """Whether this rank had to stop here. Then the caller has to check the abort flag and all else again."""
    session, core = job.session, job.session.core
    if not core.must_stand:
        return False
    number = job.number
    job.capturer.finish()  # the captured version is declared, and was observed to be complete
    session.send(Standing(generation=core.generation, rank=session.rank, number=number))
    session.wait(lambda: core.is_aborted or not core.must_stand or None)
    return True


class ForwardStop:
    """begin() may be called from any thread, everything else from the main thread. begin(), end() and enter_step() are
    called with the lock of the session, under which the abort flag is raised too."""

    def __init__(self, is_aborted: Callable[[], bool]) -> None:
        self._is_aborted = is_aborted
        self._models: Sequence[nn.Module] = ()  # empty outside of a step's block, where nothing would catch Unwind
        self._known: set[int] | None = None  # ids of all modules in them; None: not looked up yet
        self._hook: Any = None

    def enter_step(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        if self._hook is not None and not self._is_aborted():
            self.end()  # a process that was halted before it had a loop never came to rest

    def leave_step(self) -> None:
        self._models = ()

    def begin(self) -> None:
        """The abort flag is raised. The main thread sees it only after this, so end() comes later."""
        if self._hook is None:
            self._hook = register_module_forward_pre_hook(self._before_forward)

    def end(self) -> None:
        """The main thread has come to rest."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._known = None

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return  # what is compiled now is used in later steps too, and must not have this in it
        if not self._models or not self._is_aborted() or threading.current_thread() is not threading.main_thread():
            return
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return  # a graph that is captured half would be replayed later
        if self._known is None:
            self._known = {id(each) for model in self._models for each in model.modules()}
        if id(module) in self._known:
            raise Unwind


def exhausted_generator(error: BaseException) -> str | None:
    """The reason why the step cannot be redone in this process, if the script still holds a generator that ended."""
    codes = set(_generator_codes(error))
    if not codes:  # nearly always, and a search through all objects takes long
        return None
    for each in gc.get_objects():
        if isinstance(each, GeneratorType) and each.gi_frame is None and each.gi_code in codes:
            return f"the exception has ended the generator {each.__qualname__}(), which the script still holds"
    return None


def _generator_codes(error: BaseException) -> Iterator[CodeType]:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_flags & inspect.CO_GENERATOR:
            yield trace.tb_frame.f_code
        trace = trace.tb_next
