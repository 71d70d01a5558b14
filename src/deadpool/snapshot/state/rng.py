"""Random generators and sparse tensors, as plain values.

`capture_rng` and `restore_rng` capture and restores the random number generators of Python, numpy, and torch on the
CPU and every CUDA device.

Only the main thread may call it, and only at the step boundary: during a step other threads may draw from them.

Sparse tensors as plain values: a boundary record stores the tensors that they consist of, exactly as they are.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deadpool.errors import StateError


def capture_rng() -> dict[str, Any]:
    """Returns the states of all generators, in types that the record codec knows."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": _capture_cuda(),
    }


def restore_rng(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    _restore_numpy(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        _restore_cuda(state["cuda"])


def _restore_numpy(state: dict[str, Any]) -> None:
    """A script may have given numpy's global functions another bit generator in a later step."""
    kind = state["bit_generator"]
    if np.random.get_state(legacy=False)["bit_generator"] != kind:
        made = getattr(np.random, kind, None)
        if made is None:
            raise StateError(f"numpy's global functions drew from {kind}, which numpy does not have: use its own ones")
        np.random.set_bit_generator(made())  # type: ignore[attr-defined]  # the types of numpy lack it
    np.random.set_state(state)


def _capture_cuda() -> dict[str, Any] | None:
    """Returns None if CUDA is not in use, because a query would initialise it. Philox states are in host memory."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    states = [torch.cuda.get_rng_state(index) for index in range(torch.cuda.device_count())]
    return {"current": torch.cuda.current_device(), "states": states}


def _restore_cuda(stored: dict[str, Any]) -> None:
    """The rank's own device may have another index here than where it was captured; other devices go by index."""
    states: list[Tensor] = stored["states"]
    here = torch.cuda.current_device()
    for index in range(torch.cuda.device_count()):
        if index != here and index != stored["current"] and index < len(states):
            torch.cuda.set_rng_state(states[index], index)
    torch.cuda.set_rng_state(states[stored["current"]], here)


_ROWS = {torch.sparse_csr: True, torch.sparse_bsr: True, torch.sparse_csc: False, torch.sparse_bsc: False}
"""Whether the compressed dimension is that of the rows."""

_LAYOUTS = {str(layout).removeprefix("torch."): layout for layout in (torch.sparse_coo, *_ROWS)}


def is_sparse(tensor: Tensor) -> bool:
    return tensor.layout in _LAYOUTS.values()


def parts_of(tensor: Tensor) -> list[Any]:
    """Returns layout, size, whether it is coalesced, requires_grad, indices and values. What is not coalesced keeps its
    order: sums depend on it."""
    plain = tensor.detach()
    layout = str(plain.layout).removeprefix("torch.")
    if plain.layout == torch.sparse_coo:
        parts = [plain._indices(), plain._values()]
    elif _ROWS[plain.layout]:
        parts = [plain.crow_indices(), plain.col_indices(), plain.values()]
    else:
        parts = [plain.ccol_indices(), plain.row_indices(), plain.values()]
    coalesced = plain.layout == torch.sparse_coo and plain.is_coalesced()
    return [layout, list(plain.shape), coalesced, tensor.requires_grad, *parts]


def from_parts(parts: list[Any]) -> Tensor:
    name, size, coalesced, requires_grad, *tensors = parts
    layout = _LAYOUTS[name]
    if layout == torch.sparse_coo:
        indices, values = tensors
        made = torch.sparse_coo_tensor(indices, values, size, is_coalesced=coalesced, check_invariants=False)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says of each first one that it is in beta state
            compressed, plain, values = tensors
            made = torch.sparse_compressed_tensor(
                compressed, plain, values, size, layout=layout, check_invariants=False
            )
    return made.requires_grad_(requires_grad)


def overwrite_sparse(live: Tensor, value: Tensor) -> bool:
    """Makes the live tensor equal, and returns whether it could be done: the object stays the one it is."""
    if (live.layout, live.shape, live.dtype, live.device) != (value.layout, value.shape, value.dtype, value.device):
        return False
    if live.layout == torch.sparse_coo:
        live.data = value.detach()
        return True
    if live._nnz() != value._nnz():
        return False
    live.detach().copy_(value)
    return True
