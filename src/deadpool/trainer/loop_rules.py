"""What a script may do with the steps of its loop. The same with and without DeadPool around it: a script that works
under torchrun works here."""

from __future__ import annotations

from typing import Protocol

from deadpool.errors import ConfigError


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
                "Make it one loop over all steps, with the epochs inside: for step in job.steps(epochs * per_epoch): "
                "epoch, index = divmod(step.number, per_epoch)"
            )
        self._has_begun = True

    def check(self, step: OfferedStep) -> None:
        """When the script asks for the next step. Whoever breaks out of the loop does not ask."""
        if not step.entered:
            raise ConfigError(
                f"step {step.number} was never begun: the body of the loop belongs into `with step:`, also where "
                "nothing is to be done in a step (`continue` belongs into the block)"
            )
