"""Trainers that generate what they train on, and callbacks of a rehearsal.

`GeneratedBatches`: TRL's trainers that generate what they train on (GRPO, RLOO): what they keep from one update to
the next.

Random numbers of generation are those of the process, and are captured with it. Completions may serve several
updates (`num_iterations`, `steps_per_generation`). They cannot be generated again, because the model has changed
since, so they are part of every version.

`QuietCallbacks`: the callbacks of a spare that rehearses: nothing is drawn, written or sent. What began meanwhile
begins when it takes a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers.trainer_callback import DefaultFlowCallback, TrainerCallback

from deadpool.integrations.library_check import require_suitable
from deadpool.integrations.refusals import Refused
from deadpool.integrations.transformers.refusals import TrainerRefusal
from deadpool.integrations.transformers.relies_on import TRL

_TRIED = ("GRPOTrainer", "RLOOTrainer")


def generates(trainer: Any) -> bool:
    return hasattr(trainer, "_buffered_inputs")


def require_supported_generation(trainer: Any, *, force: bool) -> None:
    if not generates(trainer):
        return
    kinds = [kind.__name__ for kind in type(trainer).__mro__ if kind.__module__.startswith("trl.")]
    if not set(kinds) & set(_TRIED):
        found = kinds[0] if kinds else type(trainer).__name__
        raise Refused(
            TrainerRefusal.OTHER_GENERATION,
            f"{found} generates its batches in a way that was never tried: of such trainers {' and '.join(_TRIED)} "
            "can be protected",
        )
    require_suitable([TRL], force=force)
    for is_used, refusal, what, why in (
        (_is_set(trainer, "use_vllm"), TrainerRefusal.VLLM, "use_vllm", "its engine has random numbers of its own"),
        (getattr(trainer, "tools", None), TrainerRefusal.TOOLS, "tools", "what they do cannot be taken back"),
        (
            getattr(trainer, "environment_factories", None),
            TrainerRefusal.ENVIRONMENTS,
            "environment_factory",
            "what it does cannot be taken back",
        ),
        (
            _is_set(trainer, "use_transformers_continuous_batching"),
            TrainerRefusal.CONTINUOUS_BATCHING,
            "continuous batching",
            "it was never tried",
        ),
    ):
        if is_used:
            raise Refused(
                refusal, f"{what} cannot be protected with {kinds[0]}: {why}; generate with transformers alone"
            )


def _is_set(trainer: Any, option: str) -> bool:
    return bool(getattr(trainer.args, option, False))


class GeneratedBatches:
    """The completions that the next update may train on too."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        held = self._trainer._buffered_inputs
        return {"batches": held if held is None else [dict(batch) for batch in held]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trainer._buffered_inputs = state["batches"]


def end_cut_off_generation(trainer: Any) -> None:
    """TRL turns gradient checkpointing off while it generates, and on again unless an exception passes."""
    args, model = trainer.args, trainer.model
    if generates(trainer) and args.gradient_checkpointing and not model.is_gradient_checkpointing:
        model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)


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
