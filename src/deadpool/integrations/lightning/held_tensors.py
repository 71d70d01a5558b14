"""The plain attributes of an object, as in plain_state.py, where tensors may also lie on the device: sums of a metric,
losses in a list. To store them the host waits for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deadpool.integrations.plain_state import is_plain, plain_attributes, set_plain_attributes


class _OnHost:
    """Has the same attributes as `owner`, with its tensors on the host."""

    def __init__(self, owner: object, but: frozenset[str]) -> None:
        self.__dict__.update({name: _to_host(value) for name, value in vars(owner).items() if name not in but})


def held_attributes(owner: object, *, but: frozenset[str]) -> dict[str, Any]:
    on_device = [name for name, value in vars(owner).items() if name not in but and _has_device_tensor(value)]
    state = plain_attributes(_OnHost(owner, but) if on_device else owner, but=but)
    return {**state, "names": list(vars(owner)), "on_device": on_device}


def set_held_attributes(owner: object, state: dict[str, Any], device: torch.device) -> None:
    moved = {name: _to(state["values"][name], device) for name in state["on_device"] if name in state["values"]}
    set_plain_attributes(owner, {**state, "values": {**state["values"], **moved}})


def _has_device_tensor(value: object, depth: int = 4) -> bool:
    if type(value) is Tensor:
        return value.device.type != "cpu"
    if depth and isinstance(value, list | tuple | dict):
        return any(
            _has_device_tensor(each, depth - 1) for each in (value.values() if isinstance(value, dict) else value)
        )
    return False


def _to_host(value: Any) -> Any:
    return _to(value, torch.device("cpu")) if _has_device_tensor(value) else value


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to(device)
    if type(value) is dict:
        return {key: _to(each, device) for key, each in value.items()}
    if type(value) in (list, tuple) and not is_plain(value, 0):
        return type(value)(_to(each, device) for each in value)
    return value
