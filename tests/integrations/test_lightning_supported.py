"""What the integration with Lightning refuses before a job could train on with wrong numbers."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

L = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging, Timer  # noqa: E402

from deadpool.errors import ConfigError  # noqa: E402
from deadpool.integrations.lightning import hooks  # noqa: E402


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


def test_callbacks_of_the_module_are_refused():
    class WithCallbacks(Module):
        def configure_callbacks(self):
            return []

    with pytest.raises(ConfigError, match="configure_callbacks"):
        hooks.require_supported_fit(fit(WithCallbacks()), {})
