"""What each framework needs around a recovery: cleaned after unwinding, rehearsed by a spare, seated at a step.

One file per framework. The life of an adapter, on the main thread, and never with communication:

    survivor   reset()                                  after the exception, groups aborted
               seated(step)                             once the plan says from which step work resumes
    newcomer   with rehearsing(): dry_steps steps       under detached groups
               seated(step)                             once it has a rank

seated() may come before or after Groups.rebuild(), but before the first forward. Whoever is told the same step ends in
the same state, whatever he has been through: that is what makes the redone step exact.
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
    dry_steps_change_numerics: bool  # False: dry steps only warm, and a newcomer whom others wait for may skip them

    @property
    def dry_steps(self) -> int:
        """How many steps (forward, backward, optimizer) a spare rehearses; of several adapters the most counts."""

    def reset(self) -> None:
        """Drops what a half-done step left behind."""

    def rehearsing(self) -> AbstractContextManager[None]:
        """Around a spare's dry steps."""

    def seated(self, resume_step: int) -> None:
        """Brings the framework to where it stands at the start of `resume_step` in an undisturbed run."""

    def replicas(self) -> dict[int, tuple[int, ...]]:
        """id(parameter) -> global ranks with identical values and optimizer state, where there are several."""


@runtime_checkable
class Negotiator(Protocol):
    """The adapter of a framework whose ranks agree on something in their first step and take it for granted later.

    Asked between seated() and the first forward. Where all ranks stand alike nobody has to speak of it again; where
    they do not, all forget it and agree anew in the next step: so either way they do the same collectives.
    """

    def agreement(self) -> str:
        """How far this rank's agreements have come, in words that are the same on all ranks."""

    def renegotiate(self) -> None:
        """Forgets what was agreed."""


def negotiators(adapters: Iterable[Adapter]) -> Iterator[Negotiator]:
    return (adapter for adapter in adapters if isinstance(adapter, Negotiator))


def adapters_for(modules: Iterable[nn.Module]) -> list[Adapter]:
    """One per framework and wrapper found in the modules; apply them in this order."""
    modules = list(modules)
    adapters: list[Adapter] = [DdpAdapter(module) for module in ddp_modules(modules)]
    if has_fsdp2(modules):
        adapters.append(Fsdp2Adapter(modules))
    return [*adapters, PipelineAdapter(), PlainAdapter(modules)]
