"""What a library needs around a recovery: a reset after unwinding, a rehearsal by a spare, a seat at a step.

The calls of an adapter, on the main thread, and always without communication:

    survivor   reset()                                  after the exception, groups aborted
               seated(step)                             once the plan says from which step work resumes
               resumed()                                at Go
    newcomer   with rehearsing(): dry_steps steps       under detached groups
               reset()                                  after these steps
               seated(step)                             once it has a rank
               resumed()                                at Go

seated() comes after the state of the protected objects was put back. It may come before or after the process groups are
built anew, but before the first forward. All ranks that are seated at the same step end in the same state, whatever
happened to them before: that makes the redone step exact.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable


class Adapter:
    """Knows what one library keeps besides the state of its objects. A subclass overrides what its library needs.

    State that has to survive belongs into the objects of `protect`. An adapter is for the rest: caches, counters and
    handles that belong to one step, and values that follow from state and have to be computed again.
    """

    name = "adapter"
    dry_steps_change_numerics = False
    """False: dry steps only warm up, and may be skipped while survivors wait."""

    @property
    def dry_steps(self) -> int:
        """How many steps (forward, backward, optimizer) a spare rehearses; of several adapters the highest counts."""
        return 1

    def reset(self) -> None:
        """Drops what a step that was cut off left behind. The step may have been cut off anywhere, or nowhere."""

    def rehearsing(self) -> AbstractContextManager[None]:
        """A context around each of a spare's dry steps."""
        return nullcontext()

    def seated(self, resume_step: int) -> None:
        """Brings the library into the state that it has at the start of `resume_step` in an undisturbed run."""

    def resumed(self) -> None:
        """The steps that follow are real ones. Until then seated() may be called again, after a fault meanwhile."""

    def replicas(self) -> dict[int, tuple[int, ...]]:
        """id(parameter) -> global ranks with identical values and optimizer state; only where there are several."""
        return {}


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
