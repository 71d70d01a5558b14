"""What the integration with transformers' Trainer and TRL refuses, and why."""

from __future__ import annotations

from deadpool.integrations.refusals import Refusals, RefusedUse, Why

_TAKEN_BACK = "what they do cannot be taken back"


class TrainerRefusal(Refusals):
    ONE_RANK = RefusedUse("a job of one rank", Why.INHERENT, "start it with `deadpool run --nodes 2`")
    BATCH_SIZE_FINDER = RefusedUse(
        "`auto_find_batch_size`", Why.INHERENT, "other sizes after a fault: give per_device_train_batch_size"
    )
    IGNORED_SKIP = RefusedUse(
        "`ignore_data_skip`", Why.INHERENT, "a step can be redone only with its own batches: leave it out"
    )
    DEEPSPEED = RefusedUse("DeepSpeed through Trainer", Why.UNTRIED, "no fault was tried with it: use DDP or FSDP2")
    PERSISTENT_AND_EVALUATION = RefusedUse(
        "`dataloader_persistent_workers` where training evaluates",
        Why.NOT_BUILT,
        "the loader of the evaluation keeps its workers too, and draws a seed in the first one only",
    )
    MODEL_OF_CALLBACK = RefusedUse(
        "a model that a callback holds, unless you pass it", Why.INHERENT, "nobody else knows whether it changes"
    )
    OTHER_GENERATION = RefusedUse(
        "trainers that generate their batches, other than GRPO and RLOO",
        Why.UNTRIED,
        "no fault was tried with them",
    )
    VLLM = RefusedUse(
        "GRPO and RLOO with `use_vllm`",
        Why.NOT_BUILT,
        "the engine has random numbers of its own, and weights that a step sends it in a group that is not rebuilt: "
        "see below",
    )
    TOOLS = RefusedUse("GRPO with `tools`", Why.INHERENT, _TAKEN_BACK)
    ENVIRONMENTS = RefusedUse("GRPO with `environment_factory`", Why.INHERENT, _TAKEN_BACK)
    CONTINUOUS_BATCHING = RefusedUse(
        "GRPO and RLOO with continuous batching", Why.UNTRIED, "no fault was tried with it"
    )
    CALLED_TWICE = RefusedUse("`protect()` or `train()` called twice", Why.MISUSE, "a job has one loop")
    NO_PROGRAM = RefusedUse("the module without a program", Why.MISUSE, "give a script, or -m and a module")
