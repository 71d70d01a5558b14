"""What the integration with Lightning refuses before a job could train on with wrong numbers."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

L = pytest.importorskip("lightning")

from lightning.fabric.utilities.distributed import DistributedSamplerWrapper  # noqa: E402
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging, Timer  # noqa: E402

from deadpool.errors import ConfigError  # noqa: E402
from deadpool.integrations.lightning import hooks  # noqa: E402


class Rows(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((2,), float(index))


class Module(L.LightningModule):
    pass


def make_trainer(**settings):
    return L.Trainer(
        accelerator="cpu",
        devices=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        strategy="ddp",
        **settings,
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"overfit_batches": 2}, "overfit_batches"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders"),
        ({"max_time": "00:01:00:00"}, "Timer"),
        ({"callbacks": [Timer()]}, "Timer"),
        ({"callbacks": [StochasticWeightAveraging(1e-2)]}, "StochasticWeightAveraging"),
        ({"callbacks": [EMAWeightAveraging()]}, "EMAWeightAveraging"),
    ],
)
def test_trainers_that_are_refused(settings, reason):
    trainer = make_trainer(**settings)
    with pytest.raises(ConfigError, match=reason):
        hooks.require_supported_trainer(trainer)


def test_plain_trainer_is_accepted():
    hooks.require_supported_trainer(make_trainer())


def fit_loop(loader):
    return SimpleNamespace(_combined_loader=SimpleNamespace(flattened=[loader]), _data_fetcher=None)


def distributed(sampler=None, **settings):
    rows = Rows()
    sampler = sampler(rows) if sampler else DistributedSampler(rows, 2, 0)
    return DataLoader(rows, batch_size=2, sampler=sampler, **settings)


def test_known_orders_are_accepted():
    hooks.require_supported_data(fit_loop(distributed()))
    hooks.require_supported_data(fit_loop(distributed(SequentialSampler)))
    hooks.require_supported_data(fit_loop(DataLoader(Rows(), batch_size=None, sampler=SequentialSampler(Rows()))))


class OwnBatches(BatchSampler):
    pass


@pytest.mark.parametrize(
    "loader",
    [
        distributed(RandomSampler),
        distributed(lambda rows: DistributedSamplerWrapper(WeightedRandomSampler([1.0] * 12, 12), 2, 0)),
        DataLoader(Rows(), batch_sampler=OwnBatches(SequentialSampler(Rows()), 2, False)),
        DataLoader(Rows(), batch_sampler=[[0, 1], [2, 3]]),
    ],
)
def test_orders_that_cannot_be_drawn_again_are_refused(loader):
    with pytest.raises(ConfigError, match="the order of the training data"):
        hooks.require_supported_data(fit_loop(loader))


def test_persistent_workers_are_refused():
    with pytest.raises(ConfigError, match="persistent_workers"):
        hooks.require_supported_data(fit_loop(distributed(num_workers=1, persistent_workers=True)))


def fit(module, *, callbacks=(), ckpt_path=None, datamodule=None):
    return SimpleNamespace(
        lightning_module=module, callbacks=list(callbacks), ckpt_path=ckpt_path, datamodule=datamodule
    )


def with_attribute(holder, **attributes):
    for name, value in attributes.items():
        setattr(holder, name, value)
    return holder


GENERATORS = [np.random.default_rng(), np.random.RandomState(), random.Random(), torch.Generator()]


@pytest.mark.parametrize("generator", GENERATORS)
def test_generator_of_its_own_is_refused_unless_it_is_protected(generator):
    module = with_attribute(Module(), rng=generator)
    with pytest.raises(ConfigError, match=r"generator of its own \(rng\)"):
        hooks.require_supported_fit(fit(module), {})
    hooks.require_supported_fit(fit(module), {"rng": generator})


def test_callback_with_a_model_is_refused_unless_it_is_protected():
    average = nn.Linear(1, 1)
    callback = with_attribute(L.Callback(), average=average)
    with pytest.raises(ConfigError, match=r"holds a model \(average\)"):
        hooks.require_supported_fit(fit(Module(), callbacks=[callback]), {})
    hooks.require_supported_fit(fit(Module(), callbacks=[callback]), {"average": average})


def test_checkpoint_to_resume_from_is_refused():
    with pytest.raises(ConfigError, match="ckpt_path"):
        hooks.require_supported_fit(fit(Module(), ckpt_path="last.ckpt"), {})


def test_callbacks_of_the_module_are_refused():
    class WithCallbacks(Module):
        def configure_callbacks(self):
            return []

    with pytest.raises(ConfigError, match="configure_callbacks"):
        hooks.require_supported_fit(fit(WithCallbacks()), {})
