"""What a step that was cut off leaves in Megatron-Core, and how it is dropped.

Gradients lie in buffers of DistributedDataParallel (`main_grad`) and are added up over microbatches. Handles of
collectives belong to groups that were aborted. Schedules suspend `no_sync()` while microbatches run and put functions
of the configuration aside while they evaluate. A timer that runs refuses to be started.
"""

from __future__ import annotations

import gc
import time
from typing import Any

from deadpool.errors import ConfigError
from deadpool.integrations.megatron.parts import bucket_groups, buffers, replicas
from deadpool.trainer.adapters.adapter import Adapter

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
            raise ConfigError(
                "a step has not called zero_grad_buffer() on every model chunk: gradients that are added up over "
                "several steps cannot be protected, because a redone step would lose those of the steps before. Use "
                "more microbatches per step"
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
