"""What cannot be protected, because a step could not be redone exactly. It is refused with the reason."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DistributedSampler, SequentialSampler

from deadpool.errors import ConfigError
from deadpool.integrations.random_data import require_repeatable

TESTED = {"lightning": ("2.6",)}
_CALLBACKS = (BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder, StochasticWeightAveraging)


def require_supported_trainer(trainer: Any) -> None:
    if Trainer not in type(trainer).__mro__:  # that of pytorch_lightning is another class
        raise ConfigError(f"{type(trainer)} cannot be protected: use Trainer of the package lightning")
    for is_used, what, instead in (
        (type(trainer.strategy) is not DDPStrategy, f"{type(trainer.strategy).__name__}", "use strategy='ddp'"),
        (trainer.world_size == 1, "a job of one rank", "start it with `deadpool run --nodes 2`, and say num_nodes=2"),
        (bool(trainer.reload_dataloaders_every_n_epochs), "reload_dataloaders_every_n_epochs", "leave it out"),
        (bool(trainer.overfit_batches), "overfit_batches", "use limit_train_batches"),
        (getattr(trainer, "_val_check_time_interval", None) is not None, "validation by time", "count batches"),
    ):
        if is_used:
            raise ConfigError(f"{what} cannot be protected with lightning.Trainer: {instead}")
    for callback in trainer.callbacks:
        if isinstance(callback, _CALLBACKS):
            raise ConfigError(f"the callback {type(callback).__name__} cannot be protected: it changes the loop itself")


def require_supported_data(fit_loop: Any) -> None:
    """The order of an epoch has to follow from its number alone: after a fault it is drawn again."""
    loaders = fit_loop._combined_loader.flattened
    if len(loaders) != 1:
        raise ConfigError("several training loaders at once cannot be protected: join them in one data set")
    if isinstance(fit_loop._data_fetcher, _DataLoaderIterDataFetcher):
        raise ConfigError("a training_step that takes dataloader_iter cannot be protected: let it take batches")
    [loader] = loaders
    require_repeatable(loader)
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if not isinstance(sampler, DistributedSampler | SequentialSampler):
        raise ConfigError(
            f"the order of the training data ({type(sampler).__name__}) cannot be drawn again after a fault: use "
            "Lightning's own shuffling, a DistributedSampler or a SequentialSampler"
        )
