"""The state of DistributedDataParallel that belongs to a version: its flags, and the state of its communication hooks.

The state of a hook changes in backward, before the optimizer, and differs from rank to rank (PowerSGD's error feedback
is what this rank's gradients have lost by compression). So it is part of the boundary record, from which survivors and
newcomers restore it. With error feedback the record is as large as the gradients, and it is copied on the main thread
at each boundary. State that a hook keeps in closures or globals cannot be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.mixed_precision_hooks import _AllreduceUpcastHookState
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.parallel import DistributedDataParallel

from deadpool.errors import ConfigError, NotInPlace, StateError

_FLAGS = ("require_forward_param_sync", "require_backward_grad_sync")
_STATELESS = (type(None), bool, int, float, str, torch.dtype, torch.device, dist.ProcessGroup)
_POWER_SGD = (
    *("iter", "error_dict", "p_memory_dict", "q_memory_dict"),
    *("total_numel_before_compression", "total_numel_after_compression", "next_stats_report"),
)


def averages_gradients(module: Any) -> bool:
    """Whether gradients are averaged over all ranks: with post-local SGD they are not, and the replicas differ."""
    return not any(isinstance(state, PostLocalSGDState) for _, state in module._comm_hooks)


class Stateful(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


class DdpState:
    """The state of one module. `known` are the objects that the user protects, which need not be captured twice."""

    def __init__(self, module: DistributedDataParallel, known: Iterable[object]) -> None:
        self._module: Any = module
        self._known = list(known)
        list(self._hook_states())  # refuses state that cannot be captured as early as possible

    def state_dict(self) -> dict[str, Any]:
        flags = {flag: getattr(self._module, flag) for flag in _FLAGS}
        hooks = [each.state_dict() for each in self._hook_states()]
        return {"flags": flags, "hooks": hooks, "names": self._names()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """NotInPlace: this process has registered a hook since then, and torch cannot remove one."""
        self._require_same_hooks(state["names"])
        for flag, value in state["flags"].items():
            setattr(self._module, flag, value)
        for each, stored in zip(self._hook_states(), state["hooks"], strict=True):
            each.load_state_dict(stored)

    def _names(self) -> list[str]:
        return [str(getattr(hook, "__qualname__", hook)) for hook, _ in self._registered()]

    def _require_same_hooks(self, then: list[str]) -> None:
        now = self._names()
        if now[: len(then)] != then:
            raise StateError(
                f"communication hook {', '.join(then)} was registered in a step that this process never ran: register "
                "hooks before the loop over steps"
            )
        if len(now) > len(then):
            raise NotInPlace(
                f"communication hook {', '.join(now[len(then) :])} was registered after the step boundary from which "
                "the job resumes: register hooks before the loop over steps"
            )

    def _hook_states(self) -> Iterator[Stateful]:
        """In the order of registration, which is the same on all ranks."""
        for hook, state in self._registered():
            _refuse_updates(hook)
            for owner in (state, getattr(hook, "__self__", None)):
                if (found := self._stateful(hook, owner)) is not None:
                    yield found

    def _registered(self) -> Iterator[tuple[Callable[..., Any], Any]]:
        yield from self._module._comm_hooks
        buffers = getattr(self._module, "buffer_hook", None)
        if buffers is not None:
            yield buffers.buffer_comm_hook, buffers.buffer_comm_hook_state

    def _stateful(self, hook: Callable[..., Any], owner: Any) -> Stateful | None:
        if isinstance(owner, _STATELESS) or any(owner is each for each in self._known):
            return None
        if isinstance(owner, _AllreduceUpcastHookState):
            return _UpcastHook(owner)
        if isinstance(owner, PowerSGDState):
            return _PowerSgd(owner, next(self._module.parameters()).device)
        if isinstance(owner, PostLocalSGDState):
            return _Attributes(owner, ("iter",))
        if all(callable(getattr(owner, method, None)) for method in ("state_dict", "load_state_dict")):
            return owner  # type: ignore[no-any-return]
        raise ConfigError(
            f"the communication hook {getattr(hook, '__qualname__', hook)!s} keeps its state in a "
            f"{type(owner).__name__}, which cannot be captured: give it state_dict() and load_state_dict(), or pass it "
            "to protect() under a keyword"
        )


def _refuse_updates(hook: Callable[..., Any]) -> None:
    name = str(getattr(hook, "__qualname__", ""))
    if name.startswith(("_hook_then_optimizer", "hook_with_zero_step")):
        raise ConfigError(
            f"the communication hook {name.partition('.')[0]} updates parameters in backward, while a snapshot may "
            "still be copied from them: call optimizer.step() after backward instead"
        )


class _Attributes:
    def __init__(self, owner: Any, names: tuple[str, ...]) -> None:
        self._owner, self._names = owner, names

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self._owner, name) for name in self._names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._names:
            setattr(self._owner, name, state[name])


class _PowerSgd(_Attributes):
    """Replaces the tensors instead of writing into them: work that was cut off may still hold the old ones."""

    def __init__(self, owner: PowerSGDState, home: torch.device) -> None:
        super().__init__(owner, _POWER_SGD)
        self._home = home

    def state_dict(self) -> dict[str, Any]:
        rng: np.random.RandomState = self._owner.rng
        devices = {index: str(each.device) for index, each in self._owner.p_memory_dict.items()}
        return {**super().state_dict(), "rng": rng.get_state(legacy=False), "devices": devices}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._owner.rng.set_state(state["rng"])
        for name in ("error_dict", "p_memory_dict", "q_memory_dict"):
            state[name] = {
                index: _on(self._home, each, state["devices"].get(index)) for index, each in state[name].items()
            }
        super().load_state_dict(state)


def _on(home: torch.device, tensor: torch.Tensor, device: str | None) -> torch.Tensor:
    """The rank's device may have another number in this process, so the module's device is used."""
    if device is None or torch.device(device).type == "cpu":
        return tensor.clone()
    return tensor.to(home, copy=True)


class _UpcastHook:
    """DDP's own hook for mixed precision. It has no state between steps, but a step that was cut off sets a flag."""

    def __init__(self, owner: _AllreduceUpcastHookState) -> None:
        self._owner = owner

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        self._owner.wait_for_stream_enqueued = False


def ddp_states(modules: Iterable[DistributedDataParallel], known: Iterable[object]) -> dict[str, DdpState]:
    """The states by names that cannot be keywords of protect()."""
    known = list(known)
    return {f"data parallel module {index}": DdpState(module, known) for index, module in enumerate(modules)}
