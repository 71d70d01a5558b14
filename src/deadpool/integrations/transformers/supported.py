"""What cannot be protected, because a step could not be redone exactly. It is refused with the reason."""

from __future__ import annotations

from typing import Any

from accelerate.data_loader import DataLoaderShard, SeedableRandomSampler
from torch import nn
from torch.utils.data import SequentialSampler

from deadpool.errors import ConfigError
from deadpool.integrations.transformers.generation import is_repeat_sampler, require_supported_generation


def require_supported(trainer: Any, objects: dict[str, object], *, force: bool) -> None:
    args = trainer.args
    for is_used, what, instead in (
        (args.auto_find_batch_size, "auto_find_batch_size", "give per_device_train_batch_size"),
        (args.ignore_data_skip, "ignore_data_skip", "leave it out: a step can be redone only with its own batches"),
        (trainer.is_deepspeed_enabled, "DeepSpeed", "use DDP"),
        (not hasattr(trainer.train_dataset, "__len__"), "a training set without a length", "give it __len__"),
        (args.world_size == 1, "a job of one rank", "start it with `deadpool run --nodes 2`"),
    ):
        if is_used:
            raise ConfigError(f"{what} cannot be protected with transformers.Trainer: {instead}")
    require_supported_generation(trainer, force=force)
    _require_models_of_callbacks(trainer, objects)


def _require_models_of_callbacks(trainer: Any, objects: dict[str, object]) -> None:
    """A callback that holds a model changes it (an average of weights, TRL's reference that follows)."""
    known = [id(each) for each in (trainer.model, *objects.values())]
    for callback in trainer.callback_handler.callbacks:
        for name, value in vars(callback).items():
            if isinstance(value, nn.Module) and id(value) not in known:
                kind = type(callback).__name__
                raise ConfigError(
                    f"the callback {kind} has a model in its attribute {name}, which would not come back after a "
                    f"fault: pass it, as in protect(trainer, {name}=callback.{name})"
                )


def require_known_order(loader: Any) -> None:
    """The order of an epoch has to follow from its number alone: after a fault it is drawn again."""
    innermost = sampler_of(loader)
    is_known = isinstance(innermost, SeedableRandomSampler | SequentialSampler) or is_repeat_sampler(innermost)
    if type(loader) is not DataLoaderShard or not is_known:
        found = type(innermost if innermost is not None else loader).__name__
        raise ConfigError(
            f"the order of the training data ({found}) cannot be drawn again after a fault: use Trainer's own "
            "shuffling or a SequentialSampler, without train_sampling_strategy, dispatch_batches and "
            "use_seedable_sampler=False"
        )


def sampler_of(loader: Any) -> Any:
    """The innermost one, which knows the samples."""
    sampler: Any = getattr(loader, "batch_sampler", None)
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", None)


def refuse_epoch_stop(control: Any) -> None:
    if control.should_epoch_stop:
        raise ConfigError(
            "a callback has set control.should_epoch_stop: epochs that end early cannot be protected, because it "
            "could not be told any more which batch belongs to an update; use should_training_stop, or shorter epochs"
        )
