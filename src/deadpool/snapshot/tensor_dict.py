"""Tensors that belong to no module: a dict of them is protected like the buffers of one."""

from __future__ import annotations

from typing import Any, TypeGuard

from torch import Tensor, nn


def is_tensor_dict(value: object) -> TypeGuard[dict[str, Tensor]]:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(key, str) and isinstance(each, Tensor) for key, each in value.items())
    )


class TensorDict(nn.Module):
    """Has the dict itself for its buffers, so that a script may put other tensors into it, and finds them restored."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        super().__init__()
        self._buffers = tensors
