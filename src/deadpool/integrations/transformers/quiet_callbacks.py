"""The callbacks of a spare that rehearses: nothing is drawn, written or sent. What began meanwhile begins when it takes
a rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers.trainer_callback import DefaultFlowCallback, TrainerCallback


class QuietCallbacks:
    def __init__(self, handler: Any) -> None:
        self._handler, self._call_event = handler, handler.call_event
        self._began = False
        handler.call_event = self._call_flow_only

    def _call_flow_only(self, event: str, *args: Any, **kwargs: Any) -> Any:
        self._began |= event == "on_train_begin"
        return self._call(_is_flow, event, *args, **kwargs)

    def _call(self, choose: Callable[[TrainerCallback], bool], *args: Any, **kwargs: Any) -> Any:
        every = self._handler.callbacks
        self._handler.callbacks = [callback for callback in every if choose(callback)]
        try:
            return self._call_event(*args, **kwargs)
        finally:
            self._handler.callbacks = every

    def go_live(self, trainer: Any, *, in_epoch: bool) -> None:
        del self._handler.call_event
        events = ["on_train_begin", "on_epoch_begin"][: 1 + in_epoch] if self._began else []
        for event in events:
            self._call(lambda each: not _is_flow(each), event, trainer.args, trainer.state, trainer.control)


def _is_flow(callback: TrainerCallback) -> bool:
    return isinstance(callback, DefaultFlowCallback)
