"""fully_shard (FSDP2 and HSDP) after a fault.

`Fsdp2Adapter`: fully_shard (FSDP2, and HSDP on a mesh of two dimensions): clears what a step that was cut off leaves
behind.

It leaves three things. All-gathers in flight: they have to end before their memory is freed, and waiting for one
raises after an abort. Trackers of the training state: torch's reset_iter_state() clears them, and this file where
torch has no such function. Gradients of unsharded parameters: before torch 2.15 its reset leaves them, and the next
backward would add to them, so that training would go on with wrong numbers and no error.

A forward pass without a backward one, such as an evaluation, leaves the outermost module with whole parameters in
place of its shards, and the next forward pass uses them as they are. So parameters are looked up, and state is
loaded, only when every module has its shards again.

`ShardWatch`: which tensors fully_shard (FSDP2) holds for parameters: it gathers from memory of its own,
`_sharded_param_data`, and puts parameters of its own into the modules after each forward pass.

A script that puts another parameter into a module, or other memory into one, has an effect on what optimizer and
snapshot see, and none on what the next forward pass computes with, or one that no other process has. So it is named,
and what a step that was cut off has put into a parameter is taken out again.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

import torch
from torch import Tensor, nn

from deadpool.backend import torch_versions
from deadpool.backend.torch_versions import FSDPModule
from deadpool.trainer.adapters.plain import Adapter, replicas_of

_PLAIN = (Tensor, nn.Parameter)
_shard = operator.attrgetter("sharded_param._local_tensor")


def put_shards_back(group: Any) -> None:
    for param in group.fsdp_params:
        if _is_apart(param):
            size, stride = param.sharded_size, param.contiguous_sharded_stride
            own = torch.as_strided(param._sharded_param_data, size, stride)
            param.sharded_param._local_tensor = own


class ShardWatch:
    """Looks at the parameters of all groups of FSDP2. Only lists are compared where nothing has changed."""

    def __init__(self, groups: Iterable[Any]) -> None:
        self._groups = list(groups)
        self._params = [param for group in self._groups for param in group.fsdp_params]
        self._seen: list[Any] = []

    def take_exchanged(self, protected: Callable[[], Set[int]]) -> tuple[str, ...]:
        """Returns the names of parameters that are not those that fully_shard gathers, or that are none of the
        `protected` ones, by id; () also if nothing has changed since the last call."""
        seen, self._seen = self._seen, self._look()
        return () if seen == self._seen else tuple(self._exchanged(protected()))

    def has_others(self, protected: Set[int]) -> bool:
        """Whether fully_shard gathers parameters that are none of the protected ones, by id, or will: in the middle of
        a step too, in which the modules may have whole ones."""
        return any(
            id(param.sharded_param) not in protected
            or (param.sharded_state.name == "SHARDED" and _registered(param) is not param.sharded_param)
            for group in self._groups
            if group._reset_sharded_params
            for param in group.fsdp_params
        )

    def _look(self) -> list[Any]:
        shards = list(map(_shard, self._params))
        return [
            *(id(param.sharded_param) for param in self._params),
            *map(id, map(_registered, self._params)),
            *(each.data_ptr() for each in shards if type(each) in _PLAIN),
        ]

    def _exchanged(self, protected: Set[int]) -> Iterator[str]:
        for group in self._groups:
            if not group._reset_sharded_params:
                continue  # the first forward pass takes what it finds
            for param in group.fsdp_params:
                is_other = param.sharded_state.name == "SHARDED" and _registered(param) is not param.sharded_param
                if is_other or id(param.sharded_param) not in protected or _is_apart(param):
                    yield param._param_fqn or param._module_info.param_name


def _registered(param: Any) -> Tensor | None:
    info = param._module_info
    found: Tensor | None = info.module._parameters.get(info.param_name)
    return found


def _is_apart(param: Any) -> bool:
    """Whether the parameter has other memory than fully_shard gathers from."""
    shard, own = _shard(param), param._sharded_param_data
    if type(shard) not in _PLAIN or type(own) not in _PLAIN or not shard.numel():
        return False
    return bool(shard.untyped_storage().data_ptr() != own.untyped_storage().data_ptr())


class Fsdp2Adapter(Adapter):
    """Resets all fully sharded modules among the given ones. They have no state that depends on the step."""

    name = "fsdp2"

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._sharded = sharded_modules(modules)

    def reset(self) -> None:
        for group in self._param_groups():
            _drop_all_gather(group)
        for module in self._sharded:
            _drop_reduction(_state(module))
        for module in self._sharded:
            if _state(module)._is_root:  # None before the first forward, when there is nothing to reset
                _reset_iteration(module)
        for group in self._param_groups():
            _drop_gradients(group)
            put_shards_back(group)

    def seated(self, resume_step: int) -> None:
        shard_again(self._sharded)

    def replicas(self) -> dict[int, tuple[int, ...]]:
        return replicas_of(parameter for module in self._sharded for parameter in module.parameters())

    def _param_groups(self) -> Iterator[Any]:
        return groups_of(self._sharded)


def has_fsdp2(modules: Iterable[nn.Module]) -> bool:
    return bool(sharded_modules(modules))


def shard_again(modules: Iterable[nn.Module]) -> None:
    """Frees whole parameters that a forward pass has gathered; the next one gathers them again."""
    for module in sharded_modules(modules):
        module.reshard()


def param_groups(state: Any) -> list[Any]:
    """The parameter groups: torch has a list of them since 2.12, and one or none before."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]


def groups_of(modules: Iterable[nn.Module]) -> Iterator[Any]:
    for module in sharded_modules(modules):
        yield from param_groups(_state(module))


def leaves_of(modules: Iterable[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Yields what backward makes this rank's own gradients of, before they are reduced: parameters, or the whole ones
    that fully_shard has gathered in their place."""
    modules = list(modules)
    yield from ((name, each) for name, each in _whole_parameters(modules) if each.requires_grad)
    sharded = {id(each.sharded_param) for group in groups_of(modules) for each in group.fsdp_params}
    for module in modules:
        for name, each in module.named_parameters():
            if each.requires_grad and each.is_leaf and id(each) not in sharded:
                yield name, each


def watch_leaves(modules: Iterable[nn.Module], watch: Callable[[str, Tensor], Any]) -> list[Any]:
    """Calls `watch` for each of these leaves, now or in the forward pass that gathers it for the first time. Returns
    handles, of which more come in that pass."""
    modules = list(modules)
    leaves = list(leaves_of(modules))
    handles, watched = [watch(name, each) for name, each in leaves], {id(each) for _, each in leaves}

    def watch_gathered(*_: object) -> None:
        for name, each in _whole_parameters(modules):
            if each.requires_grad and id(each) not in watched:
                watched.add(id(each))
                handles.append(watch(name, each))

    if any(
        getattr(each, "_unsharded_param", None) is None for group in groups_of(modules) for each in group.fsdp_params
    ):
        handles += [each.register_forward_pre_hook(watch_gathered) for each in sharded_modules(modules)]
    return handles


def _name_of(param: Any) -> str:
    return str(param._param_fqn or param._module_info.param_name)


def _whole_parameters(modules: Iterable[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Yields the parameters that forward passes compute with. There are none before the first one."""
    for group in groups_of(modules):
        for param in group.fsdp_params:
            whole = getattr(param, "_unsharded_param", None)
            if whole is not None:
                yield _name_of(param), whole


def watch_shards(modules: Iterable[nn.Module]) -> ShardWatch:
    return ShardWatch(groups_of(modules))


def sharded_modules(modules: Iterable[nn.Module]) -> list[Any]:
    found = {id(each): each for module in modules for each in module.modules() if isinstance(each, FSDPModule)}
    return list(found.values())


def _state(module: Any) -> Any:
    return module._get_fsdp_state()


def _drop_all_gather(group: Any) -> None:
    result, group._all_gather_result = group._all_gather_result, None
    work = getattr(result, "all_gather_work", None)
    if work is not None:
        with contextlib.suppress(RuntimeError):  # it was aborted, and nothing writes into its memory any more
            work.wait()


def _drop_reduction(state: Any) -> None:
    """A reduction that was started for one root keeps every other root with the same streams from being reset. It was
    aborted. (Only since torch 2.15.)"""
    if getattr(getattr(state, "_comm_ctx", None), "active_gradient_reduction", None) is not None:
        state._comm_ctx.active_gradient_reduction = None


def _drop_gradients(group: Any) -> None:
    for parameter in group.fsdp_params:
        unsharded = getattr(parameter, "_unsharded_param", None)
        if unsharded is not None:
            unsharded.grad = None
        if torch_versions.fsdp2_accumulates_apart():
            parameter.unsharded_accumulated_grad = None


def _reset_iteration(root: Any) -> None:
    if torch_versions.fsdp2_resets_itself():
        root.reset_iter_state()
    else:
        reset_iteration_by_hand(_state(root))


def reset_iteration_by_hand(root_state: Any) -> None:
    """Does what reset_iter_state() does, for a torch that lacks it."""
    comm, shared = root_state._comm_ctx, root_state._state_ctx
    comm.all_gather_state = None
    if hasattr(comm, "reduce_scatter_states"):
        comm.reduce_scatter_states.clear()
    else:
        comm.reduce_scatter_state = None
    comm.post_forward_order.clear()
    for state in shared.all_states:
        getattr(state, "_modules_to_run_forward", set()).clear()
        state._training_state = type(state._training_state).IDLE
        for group in param_groups(state):
            _reset_group_by_hand(group)
    shared.iter_forward_root = None
    shared.post_backward_final_callback_queued = False


def _reset_group_by_hand(group: Any) -> None:
    for leftover in ("_post_reduce_event", "_all_reduce_state", "_reshard_after_forward_event"):
        setattr(group, leftover, None)
    group._partial_reduce_output = None
    group._post_forward_indices.clear()
    group._training_state = type(group._training_state).IDLE
    group._to_sharded()
