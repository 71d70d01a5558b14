"""What callbacks build when a spare takes a rank stays: the plain data that is loaded again after that is older."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler, ProgressCallback

from deadpool.integrations.transformers.training import LoopState


def make_trainer() -> Any:
    bar = ProgressCallback()
    handler = SimpleNamespace(callbacks=[bar], __class__=CallbackHandler)
    accelerator = SimpleNamespace(step=3)
    return SimpleNamespace(
        state=TrainerState(global_step=7), control=TrainerControl(), accelerator=accelerator, callback_handler=handler
    )


def test_progress_bar_that_began_meanwhile_stays() -> None:
    trainer = make_trainer()
    (bar,) = trainer.callback_handler.callbacks
    position = LoopState(trainer, None)
    loaded = position.state_dict()
    bar.training_bar, trainer.state.global_step = object(), 0
    position.load_state_dict(loaded, keep_built=True)
    assert bar.training_bar is not None and trainer.state.global_step == 7
    position.load_state_dict(loaded)
    assert bar.training_bar is None, "what a step that was cut off has built goes"
