"""State that Megatron-Core keeps in module globals and in objects without a usable state_dict."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import num_microbatches_calculator
from megatron.core.rerun_state_machine import RerunState, get_rerun_state_machine
from megatron.core.tensor_parallel import random
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker

from deadpool.integrations.plain_state import plain_attributes, set_plain_attributes


class RngTracker:
    """The generators that Megatron switches to: one per rank for tensor parallel regions, one for experts."""

    def state_dict(self) -> dict[str, Any]:
        tracker = random._CUDA_RNG_STATE_TRACKER
        return dict(tracker.states_) if tracker is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tracker = random._CUDA_RNG_STATE_TRACKER
        if tracker is not None:
            tracker.states_ = dict(state)
            tracker._current_state_name = "default-rng"


class AuxiliaryLosses:
    """Sums over steps, until the script reads them, for each layer with experts. Their order is that of collectives."""

    def state_dict(self) -> dict[str, Any]:
        return {name: entry["values"] for name, entry in get_moe_layer_wise_logging_tracker().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tracker = get_moe_layer_wise_logging_tracker()
        known = dict(tracker)
        tracker.clear()
        for name, values in state.items():
            # The groups to reduce over are given anew by every forward.
            entry = known.get(name, {"reduce_group": None, "avg_group": None, "reduce_group_has_dp": False})
            tracker[name] = {**entry, "values": values.to(torch.cuda.current_device())}


class Microbatches:
    """How many of them a step has; with a batch size that grows this follows from consumed samples."""

    def state_dict(self) -> dict[str, Any] | None:
        calculator = num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR
        return plain_attributes(calculator) if calculator is not None else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        calculator = num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR
        if calculator is not None and state is not None:
            rank = getattr(calculator, "rank", None)
            set_plain_attributes(calculator, state)
            if rank is not None:
                calculator.rank = rank


class RerunPosition:
    """Megatron's machine that can run a step again. It is disabled, but counts, and alternates between two states."""

    _KEPT = ("current_iteration", "first_iteration_complete", "large_value_counts", "max_values")

    def state_dict(self) -> dict[str, Any]:
        machine = get_rerun_state_machine()
        kept = {name: getattr(machine, name) for name in self._KEPT}
        return {**kept, "state": machine.state.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        machine = get_rerun_state_machine()
        for name in self._KEPT:
            setattr(machine, name, state[name])
        machine.state = RerunState[state["state"]]


class PlainAttributes:
    """The attributes of an object that are numbers, text or containers of these: a scheduler of learning rates, whose
    own load_state_dict adds to its steps, or a namespace with the counters of a script."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def state_dict(self) -> dict[str, Any]:
        return plain_attributes(self._owner)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_plain_attributes(self._owner, state)
