"""torch.distributed.pipelining: what a step leaves in schedules and stages, and what its first step agreed on.

A schedule's step clears the caches of its stages when it begins, but not all of them: the losses of the cut-off step
would be taken for those of the redone one, receives that were posted are refused a second time, gradients of inputs
add up. reset() clears everything that lives for one step.

In its first step a schedule initialises itself: the stages vote whether shapes are known beforehand, and else pass on
the metadata of activations and gradients, found by a real forward and backward of one microbatch. Doing that again
after a recovery costs the way of one microbatch through the whole pipeline and back, and it is not without trace
(torch forks the RNG around it, but buffers such as the statistics of batch norm are updated). So nobody does it again:
survivors keep what they have, and a newcomer has it from its dry step, in which the recording book answers for its
neighbours. That step is therefore needed for exactness, also by a newcomer whom others wait for.

That holds only while all ranks stand alike, and that is not left to chance: a rehearsal may have failed, a schedule may
be in evaluation mode, or be one that was first used after the steps that are rehearsed. Each rank says how far its
schedules have come (agreement()), the coordinator compares, and if any differs all of them initialise anew in the
redone step. When work resumes at step 0 nobody has initialised in the undisturbed run, so seated(0) forgets it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from deadpool.trainer.adapters.pipeline_schedules import infers_shapes, schedules, stages_of

# Since 2.9 a pair for each kind of schedule, one before.
_FLAGS = (
    *("_stage_forward_initialized", "_stage_backward_initialized", "_stage_initialized"),
    *("_stages_forward_initialized", "_stages_backward_initialized", "_stages_initialized"),
)
# Of one step, beyond what clear_runtime_states() clears: in a schedule, and in a stage.
_SCHEDULE_LEFTOVERS = (
    *("_internal_losses", "backward_counter", "fwd_recv_ops", "bwd_recv_ops", "unshard_ops", "unsharded_stages"),
)
_STAGE_LEFTOVERS = ("fwd_cache", "bwd_cache", "backward_state", "dw_runner", "output_chunks")
_INFERENCE_LEFTOVERS = (*("_fwd_outputs_for_bwd_meta", "_fwd_inputs_for_bwd_meta", "_fwd_kwargs_tensors_for_bwd_meta"),)
# What was inferred; before 2.13 a stage that has these takes no part in the exchange, whatever the flags say.
_INFERRED = ("inputs_meta", "_outputs_meta")


class PipelineAdapter:
    """All schedules of this process, whenever they are made."""

    name = "pipeline"
    dry_steps_change_numerics = True

    @property
    def dry_steps(self) -> int:
        return 1 if schedules() else 0

    def reset(self) -> None:
        for schedule in schedules():
            _clear(schedule, _SCHEDULE_LEFTOVERS)
            for stage in stages_of(schedule):
                _reset_stage(stage)

    def rehearsing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def seated(self, resume_step: int) -> None:
        if resume_step == 0:
            for schedule in schedules():
                _forget_agreement(schedule)

    def replicas(self) -> dict[int, tuple[int, ...]]:
        return {}

    def agreement(self) -> str:
        """One word per schedule in the order of their making, one digit per flag."""
        return " ".join(
            "".join(str(int(getattr(schedule, flag))) for flag in _flags(schedule)) for schedule in schedules()
        )

    def renegotiate(self) -> None:
        """In a step in which the undisturbed run does not: the generators must not notice."""
        for schedule in schedules():
            _forget_agreement(schedule)
            _initialise_aside(schedule)


def _forget_agreement(schedule: Any) -> None:
    for flag in _flags(schedule):
        setattr(schedule, flag, False)
    for stage in filter(infers_shapes, stages_of(schedule)):
        for inferred in (name for name in _INFERRED if hasattr(stage, name)):
            setattr(stage, inferred, None)


def _initialise_aside(schedule: Any) -> None:
    """Before 2.13 torch does not fork the generators around the microbatch that finds the shapes."""
    name = next(name for name in ("_initialize_stage", "_initialize_stages") if hasattr(schedule, name))
    initialise = getattr(schedule, name)

    def aside(*arguments: Any, **keywords: Any) -> Any:
        if not all(getattr(schedule, flag) for flag in _flags(schedule)):
            with torch.random.fork_rng():
                return initialise(*arguments, **keywords)
        return initialise(*arguments, **keywords)

    setattr(schedule, name, aside)


def _flags(schedule: Any) -> Iterator[str]:
    return (flag for flag in _FLAGS if hasattr(schedule, flag))


def _reset_stage(stage: Any) -> None:
    stage.clear_runtime_states()
    _clear(stage, _STAGE_LEFTOVERS)
    for leftover in (name for name in _INFERENCE_LEFTOVERS if hasattr(stage, name)):
        setattr(stage, leftover, None)
    if isinstance(stage.submod, FSDPModule):
        _expect_last_backward(stage.submod)


def _expect_last_backward(module: FSDPModule) -> None:
    """As between two steps: while microbatches run, the schedule keeps FSDP from reducing."""
    module.set_is_last_backward(True)
    module.set_reshard_after_backward(True)
    module.set_requires_gradient_sync(True)


def _clear(owner: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if hasattr(owner, name):
            getattr(owner, name).clear()
