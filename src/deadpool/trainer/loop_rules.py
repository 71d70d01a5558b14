"""The rules of the loop over steps. They hold with and without protection, so that a script that runs under torchrun
also runs under DeadPool."""

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
