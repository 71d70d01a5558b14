"""protect() gets a wrapper around an optimizer: the optimizer inside is captured, once, and hooked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from deadpool.errors import ConfigError
from deadpool.snapshot.state.state import ProtectedState


class NeverInitialised(Optimizer):
    """Is like Accelerate's: a subclass, so that schedulers accept it, which passes all calls on."""

    def __init__(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> None:
        self.optimizer, self.scaler = optimizer, scaler
        self._is_overflow = False

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


class NoSubclass:
    """Is like Lightning's: unknown attributes are those of the optimizer inside."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    @property
    def optimizer(self) -> Optimizer:
        return self._optimizer

    def step(self) -> Any:
        return self._optimizer.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


class Slotted:
    """Has no dictionary."""

    __slots__ = ("optimizer", "scaler")

    def __init__(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> None:
        self.optimizer = optimizer
        if scaler is not None:  # otherwise the slot stays empty
            self.scaler = scaler

    def step(self) -> Any:
        return self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


class SlottedBelow(Slotted):
    """Has the optimizer in a slot of its base class, not in its dictionary."""


class WithScale:
    """Is like apex': it has state of its own, which contains that of the optimizer inside."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optim, self.scale = optimizer, 2.0**16

    def step(self) -> Any:
        return self.optim.step()

    def zero_grad(self) -> None:
        self.optim.zero_grad()

    def state_dict(self) -> Any:
        return {"loss_scale": self.scale, "inner": self.optim.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        self.scale = state["loss_scale"]
        self.optim.load_state_dict(state["inner"])


class Around(Optimizer):
    """Is like SAM: a real optimizer that steps another one with the same parameters."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["seen"] = self.state[param].get("seen", 0) + 1
        return self.base_optimizer.step()


WRAPPERS = {
    "never initialised": NeverInitialised,
    "no subclass": NoSubclass,
    "slots": Slotted,
    "slots of a class above": SlottedBelow,
    "two of them": lambda optimizer: NoSubclass(NeverInitialised(optimizer)),
}


class Script:
    def __init__(self, wrapper: Any, seed: int = 0, **more: Any) -> None:
        torch.manual_seed(seed)
        self.model = nn.Linear(3, 3)
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.wrapped = wrapper(self.inner)
        self.scheduler = LambdaLR(self.inner, lambda step: 0.9**step)
        given = {key: make(self) for key, make in more.items()}
        self.state = ProtectedState(
            {"model": self.model, "optimizer": self.wrapped, "scheduler": self.scheduler, **given},
            replicas={},
            rank=0,
            node_of=lambda rank: rank,
        )

    def step(self) -> list[Any]:
        self.model(torch.ones(2, 3)).square().sum().backward()
        self.wrapped.step()
        self.wrapped.zero_grad()
        self.scheduler.step()
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def carry(source: Script, target: Script) -> None:
    record = source.state.record()
    geometry = source.state.measure()
    slot = memoryview(bytearray(geometry.slot_bytes))
    assert source.state.copy_bulk(slot, geometry, cancelled=lambda: False)
    start = geometry.offset("record")
    slot[start : start + len(record)] = record
    target.state.restore(slot, geometry, source.state.extent(record))


@pytest.mark.parametrize("kind", WRAPPERS)
def test_state_inside_of_a_wrapper_is_carried_over(kind):
    source, target = Script(WRAPPERS[kind]), Script(WRAPPERS[kind], seed=1)
    source.step(), source.step(), target.step()
    carry(source, target)
    assert all(torch.equal(*pair) for pair in zip(source.step(), target.step(), strict=True))


@pytest.mark.parametrize("kind", WRAPPERS)
def test_the_one_inside_is_the_one_that_is_hooked(kind):
    script, begun = Script(WRAPPERS[kind]), []
    assert script.state.optimizers == (script.inner,)
    script.inner.register_step_pre_hook(lambda *_: begun.append(1))
    script.step()
    assert begun == [1]


def test_two_keywords_for_the_same_optimizer():
    plain = Script(lambda inner: inner)
    twice = Script(NeverInitialised, bare=lambda script: script.inner, other=lambda script: NoSubclass(script.wrapped))
    plain.step(), twice.step()
    plain.state.record(), twice.state.record()
    assert twice.state.optimizers == (twice.inner,)
    assert twice.state.measure().unique_bytes == plain.state.measure().unique_bytes


def test_state_beside_the_optimizers_is_refused():
    with pytest.raises(ConfigError, match=r"optimizer: WithScale wraps AdamW and has state of its own .*loss_scale"):
        Script(WithScale)


@pytest.mark.parametrize("wrapper", [NeverInitialised, Slotted, SlottedBelow])
def test_scaler_of_a_wrapper_is_protected(wrapper):
    def scaled(inner: Optimizer) -> Any:
        return wrapper(inner, GradScaler("cpu", init_scale=4.0))

    source, target = Script(scaled), Script(scaled, seed=1)
    source.wrapped.scaler.load_state_dict({**source.wrapped.scaler.state_dict(), "scale": 8.0, "_growth_tracker": 5})
    source.step(), target.step()
    carry(source, target)
    assert target.wrapped.scaler.state_dict() == source.wrapped.scaler.state_dict()


def test_real_optimizer_around_another_keeps_both_states():
    source, target = (_around(seed) for seed in (0, 1))
    source.step(), source.step(), target.step()
    carry(source, target)
    assert all(torch.equal(*pair) for pair in zip(source.step(), target.step(), strict=True))
    assert [state["seen"] for state in target.wrapped.state.values()] == [3, 3]


def _around(seed: int) -> Script:
    return Script(lambda inner: Around(inner.param_groups[0]["params"]), seed)


def test_scheduler_is_no_wrapper():
    """A scheduler has an optimizer and step(), but it is not a wrapper."""
    script = Script(lambda inner: inner)
    assert script.state.optimizers == (script.inner,)
    script.step()
    record = script.state.record()
    script.step()
    script.state.restore_record(record)
    assert script.scheduler.last_epoch == 1


def test_wrapper_of_accelerate():
    accelerate = pytest.importorskip("accelerate")
    source, target = (Script(accelerate.Accelerator(cpu=True).prepare_optimizer, seed) for seed in (0, 1))
    source.step(), target.step()
    carry(source, target)
    assert all(torch.equal(*pair) for pair in zip(source.step(), target.step(), strict=True))
