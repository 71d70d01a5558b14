"""What a step that was cut off leaves in Megatron-Core.

`MegatronAdapter`: what a step that was cut off leaves in Megatron-Core, and how it is dropped.

Gradients lie in buffers of DistributedDataParallel (`main_grad`) and are added up over microbatches. Handles of
collectives belong to groups that were aborted. Schedules suspend `no_sync()` while microbatches run and put
functions of the configuration aside while they evaluate. A timer that runs refuses to be started.

`BucketState`: what the bucket groups of Megatron's DistributedDataParallel remember from one step to the next.

With overlap_grad_reduce the first batch counts how often each parameter gets a gradient, and reduces all buckets at
its end. Later batches reduce a bucket as soon as it has counted that far. So the order of collectives depends on
what was counted, and every rank of a data parallel group has to have counted the same: a newcomer, a survivor that
was cut off in its first batch, and one that has trained for days.

With overlap_param_gather the parameters that the optimizer has updated are gathered in the forward of the next step,
unless that has happened already, for example before an evaluation. That is a flag of the group, and which hooks
gather is a matter of the chunk.
"""

from __future__ import annotations

import gc
import time
from typing import Any

from deadpool.integrations.megatron.refusals import MegatronRefusal
from deadpool.integrations.megatron.state import bucket_groups, buffers, ordered_params, replicas
from deadpool.integrations.refusals import Refused
from deadpool.trainer.adapters.plain import Adapter

_FUNCTIONS = ("no_sync_func", "grad_sync_func", "param_sync_func")


class MegatronAdapter(Adapter):
    """The adapter for Megatron. It is also an object of `protect`, for what it has to note at each boundary:
    `state_dict` is called there.
    """

    name = "megatron"

    def __init__(self, chunks: list[Any], optimizers: list[Any]) -> None:
        self._chunks, self._optimizers = chunks, optimizers
        self._configs = list({id(chunk.config): chunk.config for chunk in chunks}.values())
        self._functions: list[list[Any]] = []
        self._running: set[str] = set()
        self._stepped, self._zeroed = False, dict.fromkeys(range(len(chunks)), False)
        for index, chunk in enumerate(chunks):
            self._watch_zeroing(index, chunk)
        for optimizer in optimizers:
            optimizer.optimizer.register_step_pre_hook(self._note_step)
        self._note_boundary()

    def replicas(self) -> dict[int, tuple[int, ...]]:
        return replicas(self._chunks, self._optimizers)

    def reset(self) -> None:
        groups = [group for chunk in self._chunks for group in bucket_groups(chunk)]
        if not all(group.is_last_microbatch for group in groups):
            # no_sync() is a generator that the frames of the schedule hold. It sets flags of groups when it is closed,
            # and that must not happen in the middle of the redone step.
            gc.collect()
        for group in groups:
            group.param_gather_handle = group.grad_reduce_handle = None
            group.per_param_grad_ready_counts = {}
            group.is_last_microbatch = True
        for chunk in self._chunks:
            chunk.force_all_reduce = False
            for param in chunk.params_with_grad:
                param.grad_added_to_main_grad = False
            for buffer in buffers(chunk):
                buffer.grad_data.zero_()
        for config, functions in zip(self._configs, self._functions, strict=True):
            for name, function in zip(_FUNCTIONS, functions, strict=True):
                setattr(config, name, function)
        self._reset_timers()

    def resumed(self) -> None:
        """A gradient that is there at the start of a step is the buffer itself in an undisturbed run."""
        for chunk in self._chunks:
            for param in chunk.params_with_grad:
                if param.grad is not None and param.grad.dtype == param.main_grad.dtype:
                    param.grad = param.main_grad

    def state_dict(self) -> dict[str, Any]:
        if self._stepped and not all(self._zeroed.values()):
            raise Refused(
                MegatronRefusal.NOT_ZEROED,
                "a step has not called zero_grad_buffer() on every model chunk: gradients that are added up over "
                "several steps cannot be protected, because a redone step would lose those of the steps before. Use "
                "more microbatches per step",
            )
        self._note_boundary()
        return {"running_timers": sorted(self._running)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._running = set(state["running_timers"])
        self._stepped = False
        self._reset_timers()

    def _note_boundary(self) -> None:
        self._stepped = False
        self._zeroed = dict.fromkeys(self._zeroed, False)
        self._functions = [[getattr(config, name) for name in _FUNCTIONS] for config in self._configs]
        self._running = {name for name, timer in self._timers().items() if timer._started}

    def _watch_zeroing(self, index: int, chunk: Any) -> None:
        zero = chunk.zero_grad_buffer

        def zero_grad_buffer() -> None:
            self._zeroed[index] = True
            zero()

        chunk.zero_grad_buffer = zero_grad_buffer

    def _note_step(self, *_: Any) -> None:
        self._stepped = True

    def _reset_timers(self) -> None:
        for name, timer in self._timers().items():
            if name in self._running and not timer._started:
                timer._start_time = time.time()
            timer._started = name in self._running

    def _timers(self) -> dict[str, Any]:
        """What they have measured is no state."""
        found: dict[str, Any] = {}
        for config in (*self._configs, *(optimizer.config for optimizer in self._optimizers)):
            found |= getattr(config.timers, "_timers", {})
        return found


class BucketState:
    """`state_dict` is called at the boundary of a step."""

    def __init__(self, chunks: list[Any]) -> None:
        self._chunks = chunks

    def state_dict(self) -> list[dict[str, Any]]:
        return [
            {
                "groups": [_state_of(group) for group in bucket_groups(chunk)],
                "gathers_in_forward": bool(chunk.remove_forward_pre_hook_handles),
            }
            for chunk in self._chunks
        ]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        for chunk, stored in zip(self._chunks, state, strict=True):
            for group, each in zip(bucket_groups(chunk), stored["groups"], strict=True):
                _load(group, each)
            gathers = bool(chunk.remove_forward_pre_hook_handles)
            if stored["gathers_in_forward"] and not gathers:
                chunk.enable_forward_pre_hook()
            elif gathers and not stored["gathers_in_forward"]:
                chunk.disable_forward_pre_hook(param_sync=False)


def _state_of(group: Any) -> dict[str, Any]:
    if group.param_gather_handle is not None or group.grad_reduce_handle is not None:
        raise Refused(
            MegatronRefusal.IN_FLIGHT,
            "a step has ended while a bucket of Megatron's DistributedDataParallel is still being communicated: such "
            "a job cannot be protected. Every bucket needs a parameter that is used in each forward, and gradients "
            "have to be finished (finalize_model_grads) in the step",
        )
    return {
        "is_first_batch": group.is_first_batch,
        "expected": _counts(group, group.golden_per_param_grad_ready_counts),
        "counted": _counts(group, group.per_param_grad_ready_counts),
        "is_gathered": group.param_gather_dispatched,
    }


def _load(group: Any, state: dict[str, Any]) -> None:
    group.is_first_batch = state["is_first_batch"]
    group.golden_per_param_grad_ready_counts = _by_param(group, state["expected"])
    group.per_param_grad_ready_counts = _by_param(group, state["counted"])
    group.param_gather_dispatched = state["is_gathered"]
    group.param_gather_handle = group.grad_reduce_handle = None
    group.is_last_microbatch = True


def _counts(group: Any, counts: dict[Any, int]) -> list[int]:
    """Returns counts by position; -1 where nothing is counted."""
    return [counts.get(param, -1) for param in ordered_params(group)] if counts else []


def _by_param(group: Any, counts: list[int]) -> dict[Any, int]:
    if not counts:
        return {}
    return {param: count for param, count in zip(ordered_params(group), counts, strict=True) if count >= 0}
