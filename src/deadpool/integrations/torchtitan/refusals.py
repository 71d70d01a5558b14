"""What the integration with torchtitan refuses, and why."""

from __future__ import annotations

from deadpool.integrations.refusals import Refusals, RefusedUse, Why

_UNTRIED = "no fault was tried with it"
_OWN_MEMORY = "memory that ranks share is lost with one of them"


class TorchtitanRefusal(Refusals):
    ONE_RANK = RefusedUse("a job of one rank", Why.INHERENT, "start it with `deadpool run --nodes 2`")
    ASYNC_CHECKPOINT = RefusedUse(
        "`--checkpoint.async_mode` other than `disabled`",
        Why.NOT_BUILT,
        "its thread communicates while a step is cut off. Checkpoints can be rare: a lost node costs no completed step",
    )
    CUDA_GRAPHS = RefusedUse(
        "CUDA graphs, which torchtitan uses unless told otherwise: add `--training.disable_cuda_graphs`",
        Why.NOT_BUILT,
        "graphs that hold collectives are not captured again",
    )
    SYMMETRIC_FSDP = RefusedUse("`enable_fsdp_symm_mem`", Why.INHERENT, _OWN_MEMORY)
    ASYNC_TENSOR_PARALLEL = RefusedUse("`enable_async_tensor_parallel`", Why.INHERENT, _OWN_MEMORY)
    OWN_DISPATCHER = RefusedUse("DeepEP, HybridEP, MinimalAsyncEP", Why.INHERENT, _OWN_MEMORY)
    PIPELINES = RefusedUse(
        "pipelines",
        Why.UNTRIED,
        "torchtitan 0.3 calls torch's schedules in a way that torch 2.13 does not know",
    )
    CPU_OFFLOAD = RefusedUse("`--training.enable_cpu_offload`", Why.UNTRIED, _UNTRIED)
    DIST_MUON = RefusedUse("DistMuon", Why.UNTRIED, _UNTRIED)
    OTHER_TRAINER = RefusedUse("the Flux trainer, trainers of `torchtitan.experiments`", Why.UNTRIED, _UNTRIED)
    COMM_MODE = RefusedUse("`--comm.mode` other than `default`", Why.UNTRIED, _UNTRIED)
    OTHER_CHECKPOINTER = RefusedUse("checkpointers other than torchtitan's", Why.UNTRIED, _UNTRIED)
    UNKNOWN_STEPS = RefusedUse(
        "a `train()` of yours that does not ask `should_continue_training()`",
        Why.INHERENT,
        "nobody knows where its steps begin",
    )
    OTHER_LOADER = RefusedUse(
        "a `train()` of yours that reads another loader than `trainer.dataloader`",
        Why.INHERENT,
        "nobody knows where its data stands",
    )
    OTHER_BATCHES = RefusedUse(
        "a loader whose `load_state_dict` gives other batches, also in a fresh process",
        Why.INHERENT,
        "a redone step would train on other data",
    )
    OWN_GENERATOR = RefusedUse(
        "generators of random numbers as attributes of the trainer, unless you pass them",
        Why.NOT_BUILT,
        "their state would not come back",
    )
    NO_TRAINER = RefusedUse("what is no torchtitan Trainer", Why.MISUSE, "protect() takes one")
    CALLED_TWICE = RefusedUse("`protect()` or `train()` called twice", Why.MISUSE, "a job has one loop")
