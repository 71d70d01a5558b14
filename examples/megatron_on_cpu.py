"""Lets megatron-core, which names "cuda" in hundreds of places, run on the CPU with Gloo: for tests and a first try.

Call `use_cpu()` before anything of megatron is imported. All that asks for a CUDA device gets the CPU, streams and
events do nothing, and what Megatron draws from CUDA's generator is drawn from torch's one of the CPU. Nothing here is
needed, or of any use, on a machine with a GPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = (
    *("tensor", "as_tensor", "empty", "zeros", "ones", "full", "arange", "linspace", "rand", "randn", "randint"),
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "eye", "tril_indices"),
)


def use_cpu() -> None:
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    tensor: Any = torch.Tensor
    tensor.to, tensor.type, tensor.cuda = _on_cpu(tensor.to), _with_names_of_cuda(tensor.type), _stay
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    for name in ("synchronize", "empty_cache", "set_device"):
        setattr(cuda, name, functools.partial(_do_nothing))
    cuda.Stream, cuda.Event = _Idle, _Idle
    cuda.default_stream, cuda.current_stream = functools.partial(_Idle), functools.partial(_Idle)
    cuda.stream = lambda _: contextlib.nullcontext()
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = _get_rng_state
    cuda.set_rng_state = _set_rng_state
    cuda.default_generators = (torch.default_generator,)
    torch.compile = _leave_as_it_is  # type: ignore[assignment]
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = _get_rng_state
    random._set_cuda_rng_state = _set_rng_state
    from megatron.core.transformer.moe import token_dispatcher

    token_dispatcher.maybe_move_tensor_to_cpu = _sizes
    # It warns whenever the generator of the CPU has moved under that of CUDA: here they are the same one.
    random.logging.getLogger(random.__name__).disabled = True


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return function(*("cpu" if _is_cuda(each) else each for each in args), **kwargs)

    return call


def _is_cuda(device: object) -> bool:
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    return isinstance(device, torch.device) and device.type == "cuda"


def _with_names_of_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """Megatron's optimizers tell parameters by the names of their types."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if isinstance(result, str) else result

    return call


class _Idle:
    """A stream or an event."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return _Idle


def _do_nothing(*_: Any, **__: Any) -> None: ...


def _stay(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _leave_as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    return function if function is not None else _leave_as_it_is


def _sizes(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """How many tokens go where: tensors that come from a GPU become numbers, those of the CPU would not."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def _get_rng_state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)
