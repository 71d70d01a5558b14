"""Captures and restores the random number generators of Python, numpy, and torch on the CPU and every CUDA device.

Only the main thread may call it, and only at the step boundary: during a step other threads may draw from them.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


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
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        _restore_cuda(state["cuda"])


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
