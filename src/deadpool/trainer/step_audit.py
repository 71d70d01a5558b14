"""This rank's part in the audit of a step: it tells what it computed, and again when it has computed it again.

    before      at the boundary where the step begins, or when that version was put back: digests of its state
    gradients   in backward, by hooks on the leaves of the graph, before anybody reduces what they get
    reduced     when an optimizer steps: the gradients that it takes
    after       at the boundary where the step ends: what was logged, and the state

The hooks are there in this step only. The first time, the rank then waits for the fence for a moment, so that no
further steps are computed in vain, and captures nothing until it comes. Rule 35, an audited step is computed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Part, StepAudit, StepDigests
from deadpool.snapshot.arena.checksums import checksum
from deadpool.snapshot.record.tensors import local_part
from deadpool.snapshot.state.device_digest import Begun
from deadpool.snapshot.state.state_parts import begin_digest, finish_digests
from deadpool.trainer.adapters.fsdp2 import leaves_of, watch_leaves
from deadpool.trainer.adapters.pipeline import schedules
from deadpool.trainer.audit import FENCE_S, NO_STATE, PATIENCE_STEPS, logged_parts
from deadpool.trainer.job_journal import JobJournal

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

_APART = frozenset({"plain", "ddp", "fsdp2", "pipeline"})
"""Adapters of models whose ranks exchange parameters and gradients only. The one of pipelines is there without any
too."""

Named = tuple[str, int]
"""A part, as people are told of it, and its digest."""


class GradientDigests:
    """The digests of gradients, in the order in which they are made. Hooks run on the threads of autograd."""

    def __init__(self) -> None:
        self._begun: list[tuple[str, int | Begun]] = []

    def add(self, name: str, gradient: Tensor) -> None:
        local = local_part(gradient)
        if local.layout is torch.strided:
            with torch.no_grad():
                self._begun.append((name, begin_digest(local.detach())))

    def watch(self, name: str, parameter: Tensor) -> Any:
        """Returns the handle of the hook."""
        return parameter.register_hook(lambda gradient: self.add(name, gradient))

    def named(self) -> tuple[Named, ...]:
        names, digests = [name for name, _ in self._begun], finish_digests([each for _, each in self._begun])
        return tuple(zip(names, digests, strict=True))


class AuditedStep:
    """Main thread only."""

    def __init__(self, job: Job, journal: JobJournal) -> None:
        self._job, self._journal = job, journal
        self._before: tuple[Named, ...] | None = None  # of the step that is audited, where it has begun or is about to
        self._gradients, self._reduced = GradientDigests(), GradientDigests()
        self._handles: list[Any] = []
        self._is_watched = False  # the step that is computed now, or was last
        self._answered: tuple[StepAudit, Generation] | None = None
        self._first: tuple[StepAudit, tuple[tuple[Named, ...], ...]] | None = None  # what it told the first time
        self._awaits_fence = False

    # --- the step -----------------------------------------------------------------------------------------------------

    def is_next(self, number: int) -> bool:
        """Whether the step that is about to begin is audited."""
        order = self._job.session.step_audit
        return order is not None and number == order.number - 1 and self._before is not None

    def enter_step(self, number: int) -> None:
        self._is_watched = self.is_next(number)
        if self._is_watched:
            self._gradients, self._reduced = GradientDigests(), GradientDigests()
            self._handles = watch_leaves(self._job.state.modules, self._gradients.watch)

    def leave_step(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def took(self, optimizer: Optimizer) -> None:
        """The optimizer takes the gradients of its parameters."""
        if not self._handles:
            return
        for group in optimizer.param_groups:
            for index, each in enumerate(group["params"]):
                if each.grad is not None:
                    self._reduced.add(f"{index} of {type(optimizer).__name__}", each.grad)

    # --- its boundaries -----------------------------------------------------------------------------------------------

    def resumed(self, number: int) -> None:
        """The state of this version was put back."""
        order, self._awaits_fence = self._job.session.step_audit, False
        self._before = self._state() if order is not None and number == order.number - 1 else None

    def at_boundary(self) -> bool:
        """Whether no version is to be captured here."""
        session, number = self._job.session, self._job.number
        order, before = session.step_audit, self._before
        self._before = None
        if order is None or number < order.number - 1:
            return False
        generation = session.core.generation
        is_first = order.generation == generation
        if number == order.number - 1:
            self._before = self._state()
        elif self._answered != (order, generation) and (is_first or number == order.number):
            self._answered = order, generation
            self._tell(order, before if number == order.number and self._is_watched else None)
            self._awaits_fence = is_first
        return is_first and order.number <= number < order.number + PATIENCE_STEPS

    def await_fence(self) -> None:
        """The fence comes when all ranks have told, if the version before the step is committed by then."""
        if not self._awaits_fence:
            return
        self._awaits_fence = False
        session, order = self._job.session, self._job.session.step_audit
        with self._job.waits.waiting():
            session.wait(lambda: session.core.is_aborted or session.step_audit is not order or None, timeout_s=FENCE_S)

    def _state(self) -> tuple[Named, ...]:
        return _named(self._job.state.parts(NO_STATE))

    def _tell(self, order: StepAudit, before: tuple[Named, ...] | None) -> None:
        session = self._job.session
        generation, rank = session.core.generation, session.rank
        if before is None:
            session.send(StepDigests(generation=generation, rank=rank, number=order.number, late=True))
            return
        after = (*_named(tuple(logged_parts(self._journal))), *self._state())
        stages = before, self._gradients.named(), self._reduced.named(), after
        if self._first is None or self._first[0] != order:
            self._first = order, stages
        session.send(
            StepDigests(
                generation=generation,
                rank=rank,
                number=order.number,
                before=_digest(stages[0]),
                gradients=_digest(stages[1]),
                reduced=_digest(stages[2]),
                after=_digest(stages[3]),
                differs=_first_difference(self._first[1], stages),
                apart=self._is_apart(),
            )
        )

    def _is_apart(self) -> bool:
        """Whether ranks compute their gradients without each other, as far as can be seen from the models."""
        modules = self._job.state.modules
        if schedules() or any(adapter.name not in _APART for adapter in self._job.adapters):
            return False
        if any(isinstance(each, nn.SyncBatchNorm) for module in modules for each in module.modules()):
            return False
        return not any(isinstance(each, DTensor) for _, each in leaves_of(modules))


def _named(parts: tuple[Part, ...]) -> tuple[Named, ...]:
    return tuple((f"{part.kind} {part.name}", part.digest) for part in parts if part.decides)


def _digest(stage: tuple[Named, ...]) -> int:
    return checksum(repr(stage).encode())


def _first_difference(first: tuple[tuple[Named, ...], ...], now: tuple[tuple[Named, ...], ...]) -> str:
    """The first part that differs, in the order of computation; empty: none does."""
    for stage, before, after in zip(_STAGES, first, now, strict=True):
        known = dict[str, list[int]]()
        for name, digest in before:
            known.setdefault(name, []).append(digest)
        for name, digest in after:
            if not known.get(name) or known[name].pop(0) != digest:
                return stage.format(name=name)
        if any(known.values()):
            return stage.format(name=next(name for name, left in known.items() if left))
    return ""


_STAGES = (
    "{name} before the step",
    "gradient of {name}, before it was reduced",
    "reduced gradient {name}",
    "{name} after the step",
)
