"""The random number generators of this process: Python, numpy, torch on the CPU and on every CUDA device. Stateless.

Main thread, at the step boundary: other threads draw from the same generators.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def capture_rng() -> dict[str, Any]:
    """All generator states, as values the record codec knows."""
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
    """None where CUDA is not in use: asking for its state would initialise it. Philox states live on the host."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    states = [torch.cuda.get_rng_state(index) for index in range(torch.cuda.device_count())]
    return {"current": torch.cuda.current_device(), "states": states}


def _restore_cuda(stored: dict[str, Any]) -> None:
    """The rank's own device may have another index here than where it was captured, the others are taken by index."""
    states: list[Tensor] = stored["states"]
    here = torch.cuda.current_device()
    for index in range(torch.cuda.device_count()):
        if index != here and index != stored["current"] and index < len(states):
            torch.cuda.set_rng_state(states[index], index)
    torch.cuda.set_rng_state(states[stored["current"]], here)
