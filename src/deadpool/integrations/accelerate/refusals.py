"""What the integration with Accelerate refuses, and why."""

from __future__ import annotations

from deadpool.integrations.refusals import Refusals, RefusedUse, Why

_OTHER_LAUNCHER = "such processes are not those that `deadpool run` starts"
_UNTRIED = "no fault was tried with it"


class AccelerateRefusal(Refusals):
    OWN_LOOP = RefusedUse(
        "`protect(accelerator)`, so a loop of your own over what `prepare` returned",
        Why.UNTRIED,
        "built, and no fault was tried with it yet: `protect(accelerator, force=True)` accepts it",
    )
    ONE_RANK = RefusedUse("a job of one rank", Why.INHERENT, "start it with `deadpool run --nodes 2`")
    OTHER_DISTRIBUTED = RefusedUse(
        "DeepSpeed, Megatron-LM, XLA and other devices through Accelerate",
        Why.UNTRIED,
        "DeepSpeed and Megatron-Core have integrations of their own",
    )
    FSDP1 = RefusedUse("FSDP1 (`fsdp_version: 1`)", Why.NOT_BUILT, "use `fsdp_version: 2`")
    CPU_OFFLOAD = RefusedUse("`fsdp_offload_params`", Why.UNTRIED, _UNTRIED)
    FP8 = RefusedUse("`mixed_precision: fp8`", Why.NOT_BUILT, "its scales and their history are not captured")
    NOTHING_PREPARED = RefusedUse(
        "an Accelerator that has prepared no optimizer", Why.MISUSE, "call accelerator.prepare() before"
    )
    NOT_ENDLESS = RefusedUse(
        "a loader of `accelerator.prepare` itself",
        Why.INHERENT,
        "the frames of its generator hold a batch that was read ahead: pass `endless(loader)`, and draw from that",
    )
    OTHER_LOADER = RefusedUse("loaders that Accelerate did not make", Why.MISUSE, "pass them to `protect` as they are")
    STATEFUL_LOADER = RefusedUse("`use_stateful_dataloader`", Why.UNTRIED, "the position of the plain loader is known")
    RESUMED_IN_A_STREAM = RefusedUse(
        "a training that goes on from a checkpoint in the middle of an epoch of an `IterableDataset`",
        Why.NOT_BUILT,
        "Accelerate reads and drops the batches before it in a way that is not followed",
    )
    EMPTY_EPOCH = RefusedUse("a loader without a batch", Why.MISUSE, "there is nothing to train on")
    BETWEEN_UPDATES = RefusedUse(
        "a step that ends between two updates",
        Why.INHERENT,
        "gradients that are left would be lost if the next step is redone",
    )
    LAUNCHER = RefusedUse(
        "`accelerate launch` for TPUs, SageMaker, MPI, DeepSpeed or Megatron-LM; `--no_python`",
        Why.INHERENT,
        _OTHER_LAUNCHER,
    )
    GPU_IDS = RefusedUse(
        "`--gpu_ids`", Why.INHERENT, "set CUDA_VISIBLE_DEVICES for `deadpool run`: its processes have a device already"
    )
    OTHER_COUNT = RefusedUse(
        "`--num_processes` that is not the number of ranks", Why.MISUSE, "`deadpool run` starts the processes"
    )
