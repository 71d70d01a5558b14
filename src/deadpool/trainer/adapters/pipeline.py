"""torch.distributed.pipelining after a fault.

`PipelineAdapter`: torch.distributed.pipelining: clears what a cut-off step leaves in schedules, and keeps what the
first one agreed on.

A schedule clears caches of its stages when a step begins, but not all of them: the losses of the step that was cut
off would be taken for those of the redone one, receives that were posted are refused a second time, and gradients of
inputs add up. reset() clears everything that belongs to one step.

In its first step a schedule initialises itself: the stages vote whether shapes are known beforehand, and if not,
they pass on the metadata of activations and gradients, found by a real forward and backward of one microbatch. To
repeat that after a recovery would cost the way of one microbatch through the whole pipeline and back, and would
change state (torch forks the RNG around it, but buffers such as the statistics of batch norm are updated). So it is
not repeated: survivors keep the metadata, and a newcomer has it from its dry step, in which the recorded collectives
replace its neighbours. Exactness therefore needs that step, also of a newcomer for which survivors wait.

This requires the same initialisation on all ranks, and they may differ: a rehearsal may have failed, a schedule may
be in evaluation mode, or may have been used first after the rehearsed steps. So each rank reports how far its
schedules are initialised (agreement()), the coordinator compares, and if any rank differs, all of them initialise
anew in the redone step. When work resumes at step 0, the undisturbed run has not initialised either, so seated(0)
forgets it too.

Finds the pipeline schedules that the script makes, because users pass modules to protect(), not schedules.

The constructor of every schedule calls that of _PipelineSchedule, which is wrapped before the script runs, so that
schedules made after protect() are known too. They are held by weak references, in order of creation.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from deadpool.backend import torch_versions
from deadpool.backend.torch_versions import FSDPModule, PipelineSchedule, PipelineStage
from deadpool.trainer.adapters.plain import Adapter

_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_inferring: weakref.WeakSet[Any] = weakref.WeakSet()  # stages to which the script gave no shapes


def watch_schedules() -> None:
    """Called once per process, before the script's first line."""
    call_after_init(PipelineSchedule, lambda schedule: _known.__setitem__(next(_numbers), schedule))
    call_after_init(PipelineStage, _note_shapes)


def call_after_init(kind: Any, then: Callable[[Any], None]) -> None:
    """Makes the constructor of `kind` call `then` with each new object. A second call for a class does nothing."""
    if hasattr(kind.__init__, "__wrapped__"):
        return
    original = kind.__init__

    @functools.wraps(original)
    def init(made: Any, *arguments: Any, **keywords: Any) -> None:
        original(made, *arguments, **keywords)
        then(made)

    kind.__init__ = init


def _note_shapes(stage: Any) -> None:
    if getattr(stage, "inputs_meta", None) is None:
        _inferring.add(stage)


def infers_shapes(stage: Any) -> bool:
    """Whether the stage finds its shapes by running. Shapes that the script gave must not be forgotten, or torch 2.11
    would run a microbatch to find them."""
    return stage in _inferring


def schedules() -> list[Any]:
    return list(_known.values())


def stages_of(schedule: Any) -> list[Any]:
    """One stage, or several with interleaving; none if the constructor raised."""
    stage = getattr(schedule, "_stage", None)
    return list(getattr(schedule, "_stages", [])) if stage is None else [stage]


# Since torch 2.9 there is a pair for each kind of schedule, before that a single flag; since 2.15 one more for the
# connections between stages.
FLAGS = (
    *("_stage_forward_initialized", "_stage_backward_initialized", "_stage_initialized"),
    *("_stages_forward_initialized", "_stages_backward_initialized", "_stages_initialized", "_p2p_initialized"),
)
# State of one step that clear_runtime_states() does not clear: in a schedule, and in a stage.
_SCHEDULE_LEFTOVERS = (
    *("_internal_losses", "backward_counter", "fwd_recv_ops", "bwd_recv_ops", "unshard_ops", "unsharded_stages"),
)
_STAGE_LEFTOVERS = ("fwd_cache", "bwd_cache", "backward_state", "dw_runner", "output_chunks")
_INFERENCE_LEFTOVERS = (*("_fwd_outputs_for_bwd_meta", "_fwd_inputs_for_bwd_meta", "_fwd_kwargs_tensors_for_bwd_meta"),)
# The inferred metadata. Before torch 2.13 a stage that has it takes no part in the exchange, whatever its flags are.
_INFERRED = ("inputs_meta", "_outputs_meta")


class PipelineAdapter(Adapter):
    """Resets all schedules of this process, also those made after protect()."""

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

    def seated(self, resume_step: int) -> None:
        if resume_step == 0:
            for schedule in schedules():
                _forget_agreement(schedule)

    def agreement(self) -> str:
        """One word for each schedule, in order of creation, with one digit for each flag."""
        return " ".join(
            "".join(str(int(getattr(schedule, flag))) for flag in _flags(schedule)) for schedule in schedules()
        )

    def renegotiate(self) -> None:
        """Initialises in a step in which the undisturbed run does not, so random number generators must not change."""
        for schedule in schedules():
            _forget_agreement(schedule)
            _initialise_with_forked_rng(schedule)


def _forget_agreement(schedule: Any) -> None:
    for flag in _flags(schedule):
        setattr(schedule, flag, False)
    for stage in filter(infers_shapes, stages_of(schedule)):
        for inferred in (name for name in _INFERRED if hasattr(stage, name)):
            setattr(stage, inferred, None)


def _initialise_with_forked_rng(schedule: Any) -> None:
    """Forks the generators around the microbatch that finds the shapes, which torch does not do before 2.13."""
    name = next(name for name in ("_initialize_stage", "_initialize_stages") if hasattr(schedule, name))
    initialise = getattr(schedule, name)

    def with_forked_rng(*arguments: Any, **keywords: Any) -> Any:
        if not all(getattr(schedule, flag) for flag in _flags(schedule)):
            with torch.random.fork_rng():
                return initialise(*arguments, **keywords)
        return initialise(*arguments, **keywords)

    setattr(schedule, name, with_forked_rng)


def _flags(schedule: Any) -> Iterator[str]:
    return (flag for flag in FLAGS if hasattr(schedule, flag))


def _reset_stage(stage: Any) -> None:
    if torch_versions.receives_own_their_buffers():
        _drop_aborted(stage)
    stage.clear_runtime_states()
    _clear(stage, _STAGE_LEFTOVERS)
    for leftover in (name for name in _INFERENCE_LEFTOVERS if hasattr(stage, name)):
        setattr(stage, leftover, None)
    if isinstance(stage.submod, FSDPModule):
        _expect_last_backward(stage.submod)


def _drop_aborted(stage: Any) -> None:
    """Drops what torch would wait for or refuse to replace: a reduction of gradients that was started, and the buffers
    of receives that were posted. All of it was aborted, so nothing writes into this memory any more."""
    stage._gradient_reduction_handle = None
    for infos in (stage.args_recv_info, stage.grad_recv_info):
        for receive in (each for of_microbatch in infos.values() for each in of_microbatch):
            receive.buffer = None


def _expect_last_backward(module: Any) -> None:
    """Sets the flags as between two steps: while microbatches run, the schedule keeps FSDP from reducing."""
    module.set_is_last_backward(True)
    module.set_reshard_after_backward(True)
    module.set_requires_gradient_sync(True)
    if hasattr(module, "set_manual_backward_finalization"):  # since torch 2.15
        module.set_manual_backward_finalization(False)


def _clear(owner: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if hasattr(owner, name):
            getattr(owner, name).clear()
