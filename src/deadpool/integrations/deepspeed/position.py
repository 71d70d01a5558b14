"""What an engine changes in a step beside parameters and optimizer state: counters, loss scaler, scheduler."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from deadpool.errors import ConfigError
from deadpool.integrations.deepspeed.leftovers import Leftovers
from deadpool.integrations.plain_state import is_plain, plain_attributes, set_plain_attributes
from deadpool.trainer import current

_OF_ENGINE = (
    "global_steps",
    "global_samples",
    "micro_steps",
    "skipped_steps",
    "warn_unscaled_loss",
    "_global_grad_norm",
    "_is_gradient_accumulation_boundary",
    "_step_applied",
    "_unmanaged_backward_count",
)
_OF_OPTIMIZER = (
    "custom_loss_scaler",
    "external_loss_scale",
    "overflow",
    "_global_grad_norm",
    "_is_gradient_accumulation_boundary",
)
_OF_CONFIG = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""A script may change them between two steps, by engine.set_train_batch_size()."""


class Position:
    def __init__(self, engine: Any, leftovers: Leftovers) -> None:
        self._engine, self._leftovers = engine, leftovers

    def state_dict(self) -> dict[str, Any]:
        assert current.session is not None
        if not current.session.groups.detached:  # a rehearsal that failed in a step has half of one behind it
            self._require_boundary()
        self._leftovers.reach_boundary()
        engine = self._engine
        return {
            "engine": _values(engine, _OF_ENGINE),
            "optimizer": _values(engine.optimizer, _OF_OPTIMIZER),
            "config": _values(engine._config, _OF_CONFIG),
            "scaler": [plain_attributes(each) for each in self._scalers()],
            "scheduler": [plain_attributes(each) for each in self._schedulers()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        engine = self._engine
        for owner, name in ((engine, "engine"), (engine.optimizer, "optimizer"), (engine._config, "config")):
            for key, value in state[name].items():
                setattr(owner, key, value)
        for owners, name in ((self._scalers(), "scaler"), (self._schedulers(), "scheduler")):
            for owner, values in zip(owners, state[name], strict=True):
                set_plain_attributes(owner, values)

    def _scalers(self) -> list[Any]:
        found = (getattr(self._engine.optimizer, name, None) for name in ("loss_scaler", "loss_scale_config"))
        return [each for each in found if each is not None]

    def _schedulers(self) -> list[Any]:
        scheduler = self._engine.lr_scheduler
        return [] if scheduler is None or isinstance(scheduler, LRScheduler) else [scheduler]

    def _require_boundary(self) -> None:
        """Gradients that a step leaves to the next one would be lost if that one is redone."""
        if self._leftovers.has_gradients():
            raise ConfigError(
                "a step has ended between two updates: gradients are left that no engine.step() has used. Put all "
                "micro batches of an update (gradient_accumulation_steps of them) into one `with step:`, each with "
                "engine.backward(loss) and engine.step()"
            )


def _values(owner: object, names: tuple[str, ...]) -> dict[str, Any]:
    """A norm on a device is left out: to read it would wait for the device. The next step computes another."""
    found = {name: getattr(owner, name) for name in names if hasattr(owner, name)}
    return {name: value if is_plain(value) else None for name, value in found.items()}
