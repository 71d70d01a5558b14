"""Tensors that belong to no module: a dict of them is protected like the parameters of one.

They keep their identity, as parameters do: other code may hold them, and two entries may share memory. So a step
changes them in place. What a step that was cut off did to the dict itself is undone.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any, TypeGuard

from torch import Tensor, nn

from deadpool.errors import ConfigError, StateError

_DICTS = (dict, OrderedDict, defaultdict)
"""The kinds of dicts, without their subclasses, which may have state of their own."""


def is_tensor_dict(value: object) -> TypeGuard[dict[str, Tensor]]:
    if type(value) not in _DICTS or not value:
        return False
    items = value.items()  # type: ignore[attr-defined]
    return all(isinstance(key, str) and isinstance(each, Tensor) for key, each in items)


class TensorDict(nn.Module):
    """Has the tensors for its parameters."""

    def __init__(self, name: str, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self._tensors = dict(tensors)
        for key, each in tensors.items():
            if each.requires_grad:
                raise ConfigError(
                    f"{name}[{key!r}] requires gradients: put such tensors into an nn.ParameterDict, and protect that"
                )

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        yield from self._tensors.items()


class Entries:
    """Which tensors the dict has, in which order: those that it had when it was protected."""

    def __init__(self, name: str, tensors: dict[str, Tensor]) -> None:
        self._name, self._live, self._kept = name, tensors, dict(tensors)

    def state_dict(self) -> dict[str, Any]:
        """Called at the end of each step."""
        live, kept = list(self._live.items()), list(self._kept.items())
        if len(live) != len(kept) or any(a != b or x is not y for (a, x), (b, y) in zip(live, kept, strict=True)):
            changed = [key for key, each in kept if self._live.get(key) is not each]
            changed += [key for key, _ in live if key not in self._kept]
            raise StateError(
                f"{self._name}: a step has replaced, added or removed {', '.join(map(repr, changed)) or 'entries'}: "
                "change the tensors of a protected dict in place, as in tensor.copy_(...), and keep its keys"
            )
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._live.clear()
        self._live.update(self._kept)
