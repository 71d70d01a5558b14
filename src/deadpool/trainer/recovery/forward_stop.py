"""Ends a forward pass that will be done again, at the next call of a module of the protected model.

After an abort every collective raises, but a forward pass of DDP has none: it would go on to its end, and with NCCL,
which raises nothing, the backward pass would follow it. So while an abort is in force, torch calls a hook before the
forward of every module. At all other times there is no hook and no cost.

Other modules are left alone: transforms of a data loader are modules too, and an exception in there could end an
iterator that the script goes on with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from deadpool.errors import Unwind


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
