"""What a rank's tensors are in a checkpoint of the whole job: their names, and the ranks that share them.

Names are those that torch.distributed.checkpoint gives a state dict of torch's get_state_dict, with the keywords of
protect() at the top: `model.layers.0.weight`, `optimizer.state.layers.0.weight.exp_avg`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from deadpool.snapshot.record.placement import place_in_whole
from deadpool.snapshot.state.objects import Key, Objects

_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Attributes under which DDP, compile and others keep the module that they wrap: get_state_dict leaves them out too."""


def plain_name(name: str) -> str:
    parts = name.split(".")
    while parts and parts[0] == "module":  # only at the top, where DDP puts it: elsewhere a user may have chosen it
        parts = parts[1:]
    return ".".join(part for part in parts if part == "module" or part not in _WRAPPERS)


class CheckpointNames:
    def __init__(self, objects: Objects) -> None:
        self._param_keys = {id(param): key for key, param in objects.params.items()}
        names = [plain_name(str(key[2])) for key in objects.params]
        self._ambiguous = {name for name in names if names.count(name) > 1} if len(objects.modules) > 1 else set()

    def of(self, key: Key, param: Tensor) -> str:
        kind, keyword, index, state_key = key
        if kind == "param":
            return f"{keyword}.{plain_name(str(index))}"
        if kind == "buffer":
            return ".".join(part for part in (keyword, plain_name(str(index)), str(state_key)) if part)
        return f"{keyword}.state.{self._of_param(param, index)}.{state_key}"

    def _of_param(self, param: Tensor, index: str | int) -> str:
        """Returns the name of the parameter that the state belongs to. Two modules may have parameters of the same
        name.
        """
        known = self._param_keys.get(id(param))
        if known is None:
            return str(index)
        name = plain_name(str(known[2]))
        return f"{known[1]}.{name}" if name in self._ambiguous else name


class RankSets:
    """Sets of ranks, each kept once."""

    def __init__(self, replicas: Mapping[int, tuple[int, ...]], rank: int) -> None:
        """`replicas`: id(parameter) -> ranks with identical values."""
        self._replicas, self._rank = dict(replicas), rank
        self._index: dict[tuple[int, ...], int] = {}

    def place(self, tensor: Tensor, param: Tensor, *, sharded: bool) -> tuple[tuple[int, ...], int, int]:
        """Where a tensor begins in the whole one, the ranks with the same bytes, and those that the whole lies on."""
        replicas = () if sharded else self._replicas.get(id(param), ())
        alike = tuple(sorted({*replicas, self._rank}))
        start, mesh = place_in_whole(tensor, self._rank)
        sharing = mesh if len(mesh) > 1 else alike
        return start, self._add(alike), self._add(sharing)

    def forget(self, ids: Iterable[int]) -> None:
        """Forgets that these parameters are the same on several ranks."""
        for each in ids:
            self._replicas.pop(each, None)

    def all(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._index)

    def _add(self, ranks: tuple[int, ...]) -> int:
        return self._index.setdefault(ranks, len(self._index))
