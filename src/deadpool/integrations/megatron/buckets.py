"""What the bucket groups of Megatron's DistributedDataParallel remember from one step to the next.

With overlap_grad_reduce the first batch counts how often each parameter gets a gradient, and reduces all buckets at its
end. Later batches reduce a bucket as soon as it has counted that far. So the order of collectives depends on what was
counted, and every rank of a data parallel group has to have counted the same: a newcomer, a survivor that was cut off
in its first batch, and one that has trained for days.

With overlap_param_gather the parameters that the optimizer has updated are gathered in the forward of the next step,
unless that has happened already, for example before an evaluation. That is a flag of the group, and which hooks gather
is a matter of the chunk.
"""

from __future__ import annotations

from typing import Any

from deadpool.errors import ConfigError
from deadpool.integrations.megatron.parts import bucket_groups, ordered_params


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
        raise ConfigError(
            "a step has ended while a bucket of Megatron's DistributedDataParallel is still being communicated: such "
            "a job cannot be protected. Every bucket needs a parameter that is used in each forward, and gradients "
            "have to be finished (finalize_model_grads) in the step"
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
