"""What a step does outside of this process: checkpoints, validation, metrics. A rehearsal does none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deadpool.integrations.torchtitan.training import Training


def watch_checkpoints(checkpointer: Any, training: Training) -> None:
    load, save = checkpointer.load, checkpointer.save

    def load_once(*args: Any, **kwargs: Any) -> bool:
        return bool(training.loads_checkpoints and load(*args, **kwargs))

    def save_in_pause(curr_step: int, last_step: bool = False) -> bool:
        if training.is_dry:
            return False
        with training.pause("checkpoint"):
            saved = bool(save(curr_step, last_step))
        if saved and training.job is not None and not (last_step and checkpointer.last_save_model_only):
            training.job.durable(curr_step, checkpointer._create_checkpoint_id(curr_step))
        return saved

    checkpointer.load, checkpointer.save = load_once, save_in_pause


def watch_validation(validator: Any, training: Training) -> None:
    validate = validator.validate

    def validate_in_pause(*args: Any, **kwargs: Any) -> None:
        if not training.is_dry:
            with training.pause("validation"):
                validate(*args, **kwargs)

    validator.validate = validate_in_pause


def watch_metrics(metrics: Any, training: Training) -> None:
    log = metrics.log

    def log_if_real(*args: Any, **kwargs: Any) -> None:
        if not training.is_dry:
            log(*args, **kwargs)

    metrics.log = log_if_real
