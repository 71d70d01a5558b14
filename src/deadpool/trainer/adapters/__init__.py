"""What each framework needs around a recovery: a reset after unwinding, a rehearsal by a spare, a seat at a step.

One file per framework. The calls of an adapter, on the main thread, and always without communication:

    survivor   reset()                                  after the exception, groups aborted
               seated(step)                             once the plan says from which step work resumes
               resumed()                                at Go
    newcomer   with rehearsing(): dry_steps steps       under detached groups
               seated(step)                             once it has a rank
               resumed()                                at Go

seated() may come before or after Groups.rebuild(), but before the first forward. All ranks that are seated at the same
step end in the same state, whatever happened to them before: that makes the redone step exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from torch import nn

from deadpool.trainer.adapters.ddp import DdpAdapter, ddp_modules
from deadpool.trainer.adapters.fsdp2 import Fsdp2Adapter, has_fsdp2
from deadpool.trainer.adapters.pipeline import PipelineAdapter
from deadpool.trainer.adapters.plain import PlainAdapter

__all__ = [
    "Adapter",
    "DdpAdapter",
    "Fsdp2Adapter",
    "Negotiator",
    "PipelineAdapter",
    "PlainAdapter",
    "adapters_for",
    "negotiators",
]


class Adapter(Protocol):
    """Knows the per-step state of one framework."""

    name: str
    dry_steps_change_numerics: bool  # False: dry steps only warm up, and may be skipped while survivors wait

    @property
    def dry_steps(self) -> int:
        """How many steps (forward, backward, optimizer) a spare rehearses; of several adapters the highest counts."""

    def reset(self) -> None:
        """Drops what a step that was cut off left behind."""

    def rehearsing(self) -> AbstractContextManager[None]:
        """A context around a spare's dry steps."""

    def seated(self, resume_step: int) -> None:
        """Brings the framework into the state that it has at the start of `resume_step` in an undisturbed run."""

    def resumed(self) -> None:
        """The steps that follow are real ones. Until then seated() may be called again, after a fault meanwhile."""

    def replicas(self) -> dict[int, tuple[int, ...]]:
        """id(parameter) -> global ranks with identical values and optimizer state; only where there are several."""


@runtime_checkable
class Negotiator(Protocol):
    """The adapter of a framework whose ranks agree on something in their first step and rely on it later.

    Called between seated() and the first forward. If the agreement is the same on all ranks, they keep it. If not, all
    forget it and agree anew in the next step. Either way all ranks run the same collectives.
    """

    def agreement(self) -> str:
        """How far this rank's agreements have come, as text that all ranks can compare."""

    def renegotiate(self) -> None:
        """Forgets what was agreed."""


def negotiators(adapters: Iterable[Adapter]) -> Iterator[Negotiator]:
    return (adapter for adapter in adapters if isinstance(adapter, Negotiator))


def adapters_for(modules: Iterable[nn.Module]) -> list[Adapter]:
    """One adapter for each framework and wrapper found in the modules, to be applied in this order."""
    modules = list(modules)
    adapters: list[Adapter] = [DdpAdapter(module) for module in ddp_modules(modules)]
    if has_fsdp2(modules):
        adapters.append(Fsdp2Adapter(modules))
    return [*adapters, PipelineAdapter(), PlainAdapter(modules)]
