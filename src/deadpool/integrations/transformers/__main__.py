"""Runs a program that calls `train()` of a Trainer somewhere inside, and protects that Trainer:

    deadpool run --nodes 2 --spares 1 -m deadpool.integrations.transformers train.py ...
    deadpool run --nodes 2 --spares 1 -m deadpool.integrations.transformers -m trl.scripts.sft --config sft.yaml

What a user would otherwise write, `protect(trainer)`, comes right before the first `train()`. Further objects cannot be
passed: a program that needs them is changed by the two lines.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from transformers import Trainer

from deadpool.integrations.refusals import Refused
from deadpool.integrations.transformers.hooks import ProtectedTrainer, checkpoint_to_begin_with, protect
from deadpool.integrations.transformers.refusals import TrainerRefusal
from deadpool.trainer.process.main import run_program


def protect_on_train() -> None:
    """From now on `train()` of a Trainer, also of a subclass, protects it first where its script has not done so."""
    train = Trainer.train

    @functools.wraps(train)
    def protected(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, ProtectedTrainer):
            protect(self)
            if isinstance(self, ProtectedTrainer):  # else DeadPool has not started this program
                resume_from_checkpoint = checkpoint_to_begin_with(resume_from_checkpoint)
        return train(self, resume_from_checkpoint, *args, **kwargs)

    Trainer.train = protected  # type: ignore[method-assign]


def main() -> None:
    command = sys.argv[1:]
    if not command:
        raise Refused(TrainerRefusal.NO_PROGRAM, "the program is missing: give a script, or -m and a module")
    protect_on_train()
    run_program(command)


if __name__ == "__main__":
    main()
