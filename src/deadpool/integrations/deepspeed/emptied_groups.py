"""ZeRO stage 3 takes the parameters out of its torch optimizer between two updates, and keeps their state in it.

It puts one flat master at a time into its group, steps the optimizer, and takes the master out again. protect() looks
for parameters in groups, so it gets this view of the optimizer: the same state, hooks and hyperparameters, and the
masters in their groups.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class WithMasters(Optimizer):
    def __init__(self, zero: Any) -> None:
        # Not initialised as an optimizer: everything is that of the one behind it, also if a checkpoint replaces it.
        self._zero = zero
        vars(self)["state"] = vars(self)["param_groups"] = None  # behind the properties: protect() looks for the names
        self._optimizer_step_pre_hooks = zero.optimizer._optimizer_step_pre_hooks
        self._optimizer_step_post_hooks = zero.optimizer._optimizer_step_post_hooks

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self._zero.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        zero = self._zero
        groups = enumerate(zero.optimizer.param_groups)
        return [_Group(group, [*_masters_of(zero, index)]) for index, group in groups]

    def step(self, closure: Any = None) -> Any:
        raise AssertionError("DeepSpeed steps the optimizer behind this one")


def _masters_of(zero: Any, group: int) -> Iterator[Tensor]:
    for index, master in enumerate(zero.fp32_partitioned_groups_flat):
        if zero.sub_group_to_group_id[index] == group:
            yield master


class _Group(MutableMapping[str, Any]):
    """A group of the optimizer, but for its parameters."""

    def __init__(self, group: dict[str, Any], masters: list[Tensor]) -> None:
        self._group, self._masters = group, masters

    def __getitem__(self, key: str) -> Any:
        return self._masters if key == "params" else self._group[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._group[key] = value

    def __delitem__(self, key: str) -> None:
        del self._group[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._group)

    def __len__(self) -> int:
        return len(self._group)
