"""Faults at named moments of training, and how those moments are recognised.

`InjectionTriggers` injects faults at named moments of training, in a script that knows nothing of them.

The monitor thread adds injections; the thread that reaches the moment injects the fault. It first reports the
injection in a message that the agent finds even if this process dies right after, and then sends the signal to its
own process. If the fault is meant for the whole node, the agent follows. While no injection waits, the only cost is
a check of an empty tuple.

`MomentWatch` recognises the named moments of one training step by its ops, in any script and framework.

A MomentWatch is entered around the block of one step, and only if an injection waits for a moment in it. It sees
every op that reaches torch's dispatcher, those of the autograd engine and of DDP's reducer included. It lets DTensor
go first, so it also sees the ops on local shards and the collectives behind a DTensor. It changes none of them.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from deadpool.config.orders import AUDITED, IN_STEP
from deadpool.events.event import Event
from deadpool.protocol.messages import Injected, Injection, Report
from deadpool.trainer.loop import Arguments, after_closure
from deadpool.trainer.process.bit_flip import STEP_FLIPS, StepFlip, flip_bit

if TYPE_CHECKING:
    from deadpool.snapshot.state.state import ProtectedState
    from deadpool.trainer.process.session import Session


WATCHED = ("forward", "backward", "reduce", "clip", "optimizer")
"""The moments inside a step's block, in the order in which they come."""

_ENOUGH = {"forward": 10, "backward": 10, "reduce": 1, "clip": 1, "optimizer": 2}
"""The number of ops of a moment after which the fault is injected. After two of an optimizer, either its step counters
or some of the parameters are updated; a fused optimizer has updated all, but step() has not returned."""

_CLIPPING = {"_foreach_norm", "linalg_vector_norm", "norm", "_foreach_clamp_min_", "_foreach_clamp_max_", "clamp_"}
_MADE_OF_OPS = (DTensor, AsyncCollectiveTensor)
_COLLECTIVES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}


class MomentWatch(TorchDispatchMode):
    """Calls `inject` once, when the step is inside the moment `at`: after some ops of it, or when it ends before that.
    If the moment does not come, `inject` is never called."""

    def __init__(self, at: str, inject: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._at, self._inject = at, inject
        self._ops = 0  # of the awaited moment, so far
        self._reading = False  # a parameter was read: the ops before that only made the batch
        self._backward_ran = False  # since the last forward: gradients exist, or are being computed
        self._clipping = False
        self._optimizing = False
        self._injected = False
        self._hooks: list[Any] = []

    def __enter__(self) -> MomentWatch:
        self._hooks = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def close(self) -> None:
        """Stops watching, at the end of the block or when an exception leaves it."""
        for hook in self._hooks:
            hook.remove()
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def block_ends(self) -> None:
        """Injects the fault if its moment was the last one of the block."""
        if self._ops:
            self._reached()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "profiler" or FakeTensor in types:
            return func(*args, **(kwargs or {}))  # nothing is computed: DTensor infers shapes this way
        moment = self._moment_of(func, args, kwargs)
        if self._ops and moment != self._at:
            self._reached()
        if any(kind in _MADE_OF_OPS for kind in types):
            return NotImplemented  # its ops on local tensors come here in turn
        result = func(*args, **(kwargs or {}))
        if moment == self._at and (moment != "optimizer" or func._schema.is_mutable):
            self._ops += 1
            if self._ops >= _ENOUGH[moment]:
                self._reached()
        return result

    def _moment_of(self, func: Any, args: Any, kwargs: Any) -> str | None:
        namespace, _, name = func._schema.name.partition("::")
        if self._optimizing:
            return "optimizer"
        reduces = namespace in _COLLECTIVES and "reduce" in name
        if torch._C._current_autograd_node() is not None:
            self._backward_ran, self._clipping = True, False
            return "reduce" if reduces and self._at == "reduce" else "backward"
        if name != "detach" and torch.is_grad_enabled() and _reads_parameter(args, kwargs):
            self._reading, self._backward_ran = True, False  # also between two backwards: microbatches, pipelines
        if not self._backward_ran:
            return "forward" if self._reading else None
        self._clipping = self._clipping or name in _CLIPPING  # reductions after this are those of norms
        if reduces and not self._clipping:
            return "reduce"
        return "clip" if name in _CLIPPING else None

    def _optimizer_begins(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        later = after_closure(args, kwargs, self._update_begins)
        if later is None:
            self._update_begins()
        return later

    def _update_begins(self) -> None:
        self._optimizing = True

    def _optimizer_ends(self, *_: Any) -> None:
        self._optimizing = False
        if self._at == "optimizer":
            self._reached()

    def _reached(self) -> None:
        if not self._injected:
            self._injected = True
            self._inject()


def _reads_parameter(args: Any, kwargs: Any) -> bool:
    return any(isinstance(each, Tensor) and each.requires_grad and each.is_leaf for each in tree_leaves((args, kwargs)))


class InjectionTriggers:
    """The injections that wait for their moment in this process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: tuple[Injection, ...] = ()
        self._watch: MomentWatch | None = None
        self._step = 0  # the one that is computed
        self._is_audited = False  # that step
        self._step_flips: dict[str, StepFlip] = {}  # by what flips in that step

    def add(self, injection: Injection) -> None:
        if injection not in self._waiting:  # every seat brings it again
            self._waiting += (injection,)
            self._report("injection_set", injection)

    # --- the moments, as the training loop passes them ---------------------------------------------------------------

    def enter_step(self, number: int, state: ProtectedState, *, is_audited: bool) -> None:
        """Watches for one moment: if several of this step are waited for, the one that comes first."""
        self._step, self._is_audited = number, is_audited
        wanted = {injection.flips for injection in self._due_flips()}
        self._step_flips = {what: STEP_FLIPS[what](state.modules, number) for what in IN_STEP if what in wanted}
        due = [injection for injection in self._waiting if injection.at in WATCHED and injection.step == number]
        if due:
            injection = min(due, key=lambda each: WATCHED.index(each.at or ""))
            self._watch = MomentWatch(injection.at or "", lambda: self._inject(injection))
            self._watch.__enter__()

    def leave_step(self, *, completed: bool) -> None:
        """The step's block has ended; whether the step counts is not known yet."""
        for flip in self._step_flips.values():
            flip.remove()
        if not completed:
            self._step_flips.clear()
        if self._watch is not None:
            watch, self._watch = self._watch, None
            watch.close()
            if completed:
                watch.block_ends()

    def updated(self, state: ProtectedState) -> None:
        """The step's block has ended well: the optimizer has stepped, and nothing is copied yet."""
        in_step, self._step_flips = self._step_flips, {}
        for injection in self._due_flips():
            if injection.flips in IN_STEP:
                flip = in_step.get(injection.flips)
                if flip is not None or injection.at != AUDITED:  # else it came in the middle of the step: the next one
                    self._tell_flip(injection, flip is not None and flip.has_flipped)
            else:
                found = flip_bit(injection.flips, state.modules, state.optimizers, self._step)
                self._tell_flip(injection, found)

    def taken(self, optimizer: Optimizer) -> None:
        for flip in self._step_flips.values():
            flip.taken(optimizer)

    def _due_flips(self) -> list[Injection]:
        """Returns what flips in the step that is computed."""
        return [each for each in self._waiting if each.flips and self._is_due(each)]

    def _is_due(self, injection: Injection) -> bool:
        if injection.step is None:
            return injection.at == AUDITED and self._is_audited
        return self._step == injection.step or (injection.lasts and self._step > injection.step)

    def _tell_flip(self, injection: Injection, has_flipped: bool) -> None:
        if not has_flipped:
            self._miss(injection)
            return
        self._report("injected", injection)
        if not injection.lasts:
            self._remove(injection)
            self._session.send(Injected(injection=injection, hit=True))

    def between(self, number: int) -> None:
        """The step counts and its snapshot has begun. Moments of this step and of earlier ones are missed for good."""
        for injection in self._waiting:
            if injection.at == "between" and injection.step == number:
                self._inject(injection)
            elif injection.step is not None and injection.step <= number and not injection.lasts:
                self._miss(injection)

    def recovered(self) -> None:
        for injection in self._waiting:
            if injection.at == "recovered":
                self._inject(injection)

    def capturing(self, number: int, cancelled: Callable[[], bool]) -> Callable[[], bool]:
        """Wraps `cancelled`, which the copying thread calls before each piece, so that a waiting fault is injected
        before the second piece."""
        injection = self._awaiting_capture(number)
        if injection is None:
            return cancelled
        pieces = itertools.count(1)

        def inject_before_second_piece() -> bool:
            if next(pieces) == 2:
                self._inject(injection)
            return cancelled()

        return inject_before_second_piece

    def captured(self, number: int) -> None:
        """Injects the fault after a copy of a single piece. The copy has not been declared yet, so no process has
        learnt of it."""
        injection = self._awaiting_capture(number)
        if injection is not None:
            self._inject(injection)

    def _awaiting_capture(self, number: int) -> Injection | None:
        return next((each for each in self._waiting if each.at == "capture" and each.step == number), None)

    # --- injecting ---------------------------------------------------------------------------------------------------

    def _inject(self, injection: Injection) -> None:
        if injection not in self._waiting:
            return
        self._remove(injection)
        self._report("injected", injection)
        self._session.send(Injected(injection=injection, hit=True))
        os.kill(os.getpid(), injection.signal)

    def _miss(self, injection: Injection) -> None:
        self._remove(injection)
        self._report("injection_missed", injection)
        self._session.send(Injected(injection=injection, hit=False))

    def _remove(self, injection: Injection) -> None:
        with self._session.changed:  # the monitor thread adds under this lock
            self._waiting = tuple(each for each in self._waiting if each != injection)

    def _report(self, what: str, injection: Injection) -> None:
        """The event has no cause: it did not follow from the fault that caused this generation."""
        session = self._session
        detail = {
            "trainer": session.name,
            "at": injection.at,
            "signal": injection.signal or None,
            "flips": injection.flips or None,
            "lasts": injection.lasts or None,
        }
        rank = session.role.rank if session.role is not None else None
        step = self._step if what == "injected" and injection.flips else injection.step
        event = Event(what=what, rank=rank, step=step, detail=detail)
        session.send(Report(records=(event.record(t=time.time()),)))
