"""What Trainer keeps beside model, optimizer and scheduler, and changes in a step."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback

from deadpool.integrations.plain_state import is_plain, plain_attributes, set_plain_attributes

_NOT_STATE = frozenset({"train_dataset", "eval_dataset", "log_history", "_buffered_inputs"})


class SummedLoss(nn.Module):
    """Trainer adds up its loss on the device. As a buffer it is captured without waiting for the device."""

    value: Tensor

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(0.0, device=device))


class Position:
    """Counters, flags, the history of logs, and the plain data of callbacks.

    `first` is the update that the job began with, after the checkpoint `resumed_from`. A process that is started later
    takes both from the others: it may find a newer checkpoint, and must not begin there.
    """

    def __init__(self, trainer: Any, resumed_from: str | None) -> None:
        self._trainer = trainer
        self.first, self.resumed_from = trainer.state.global_step, resumed_from
        self._logs: list[str] = []  # the history as text: it only grows, and is part of every version

    def state_dict(self) -> dict[str, Any]:
        history = self._trainer.state.log_history
        del self._logs[len(history) :]
        self._logs += [json.dumps(each, default=float) for each in history[len(self._logs) :]]
        own = {"first": self.first, "resumed_from": self.resumed_from, "step": self._trainer.accelerator.step}
        parts = {name: plain_attributes(part, but=_NOT_STATE) for name, part in self._parts().items()}
        return {"own": own, "logs": list(self._logs), "parts": parts}

    def load_state_dict(self, state: dict[str, Any], *, keep_built: bool = False) -> None:
        """With `keep_built`, what is no plain data now stays: callbacks have built it since, such as a progress bar."""
        accelerator, own, self._logs = self._trainer.accelerator, state["own"], list(state["logs"])
        self.first, self.resumed_from, accelerator.step = own["first"], own["resumed_from"], own["step"]
        self._trainer.state.log_history[:] = [json.loads(each) for each in self._logs]
        for name, part in self._parts().items():
            if name in state["parts"]:
                stored = state["parts"][name]
                set_plain_attributes(part, _without_built(part, stored) if keep_built else stored)

    def _parts(self) -> dict[str, Any]:
        trainer = self._trainer
        parts = {"trainer": trainer, "state": trainer.state, "control": trainer.control}
        own = [each for each in trainer.callback_handler.callbacks if not _has_connections(each)]
        return parts | {f"callback {index} {type(each).__name__}": each for index, each in enumerate(own)}


def _without_built(part: Any, stored: dict[str, Any]) -> dict[str, Any]:
    values = {name: each for name, each in stored["values"].items() if is_plain(vars(part).get(name))}
    return {**stored, "values": values}


def _has_connections(callback: TrainerCallback) -> bool:
    """Tells whether the callback reports to another program: a fresh process connects anew, whatever the lost one
    remembered of that.
    """
    return any(kind.__module__.startswith("transformers.integrations") for kind in type(callback).__mro__)
