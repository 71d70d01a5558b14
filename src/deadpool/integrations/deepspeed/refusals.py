"""What the integration with DeepSpeed refuses, and why."""

from __future__ import annotations

from deadpool.integrations.refusals import Refusals, RefusedUse, Why

_UNTRIED = "no fault was tried with it"
_MOVES = "state that moves between memories while a step runs was never tried"
_LAUNCHED = "such processes are not those that `deadpool run` starts"


class DeepSpeedRefusal(Refusals):
    ONE_RANK = RefusedUse("a job of one rank", Why.INHERENT, "start it with `deadpool run --nodes 2`")
    UNUSED_PARAMETER = RefusedUse(
        "a step of stage 3 in which a parameter gets no gradient (also in the first micro batch alone)",
        Why.INHERENT,
        "DeepSpeed 0.19 updates it with a gradient that an earlier step has left in its buffer; that gradient is not "
        "captured",
    )
    BETWEEN_UPDATES = RefusedUse(
        "a step that ends between two updates",
        Why.INHERENT,
        "gradients that are left would be lost if the next step is redone",
    )
    TRAINING_DATA = RefusedUse(
        "`training_data=` of `deepspeed.initialize`",
        Why.NOT_BUILT,
        "the position of its loader is not put back: use torch's DataLoader, and `protect(engine, data=loader)`",
    )
    FLOPS_PROFILER = RefusedUse("`flops_profiler`", Why.INHERENT, "its hooks cannot be put back")
    AUTOTUNING = RefusedUse("autotuning", Why.INHERENT, "it ends the script by itself")
    OVERLAP = RefusedUse(
        "`overlap_comm` on a device with streams", Why.UNTRIED, "stage 3 has it on by default: set it to false"
    )
    OFFLOAD_OPTIMIZER = RefusedUse("`offload_optimizer`", Why.UNTRIED, _MOVES)
    OFFLOAD_PARAM = RefusedUse("`offload_param`", Why.UNTRIED, _MOVES)
    QUANTIZED_WEIGHTS = RefusedUse("`zero_quantized_weights`", Why.UNTRIED, _UNTRIED)
    QUANTIZED_FROZEN = RefusedUse("`zero_quantized_nontrainable_weights`", Why.UNTRIED, _UNTRIED)
    QUANTIZED_GRADIENTS = RefusedUse("`zero_quantized_gradients`", Why.UNTRIED, _UNTRIED)
    ZENFLOW = RefusedUse("`zenflow`", Why.UNTRIED, _UNTRIED)
    HPZ = RefusedUse("`zero_hpz_partition_size`", Why.UNTRIED, _UNTRIED)
    OTHER_ENGINE = RefusedUse("pipelines and other engines", Why.UNTRIED, _UNTRIED)
    MPU = RefusedUse("an `mpu`", Why.UNTRIED, _UNTRIED)
    EXPERTS = RefusedUse("mixtures of experts", Why.UNTRIED, _UNTRIED)
    TENSOR_PARALLEL = RefusedUse("`tensor_parallel`", Why.UNTRIED, _UNTRIED)
    PARTIAL_DATA_PARALLEL = RefusedUse("a data parallel group of only some ranks", Why.UNTRIED, _UNTRIED)
    SEQUENCE_PARALLEL = RefusedUse("sequence parallelism", Why.UNTRIED, _UNTRIED)
    OTHER_OPTIMIZER = RefusedUse("Muon, LAMB and 1-bit optimizers", Why.UNTRIED, _UNTRIED)
    OTHER_WRAPPER = RefusedUse("optimizers without ZeRO that are not torch's, in fp16 or bf16", Why.UNTRIED, _UNTRIED)
    OWN_ACCUMULATION = RefusedUse("`managed_gradient_accumulation: false`", Why.UNTRIED, _UNTRIED)
    AUTOCAST = RefusedUse("`torch_autocast`", Why.UNTRIED, _UNTRIED)
    DATA_EFFICIENCY = RefusedUse("`data_efficiency`", Why.UNTRIED, _UNTRIED)
    COMPILED = RefusedUse("`engine.compile()`", Why.UNTRIED, _UNTRIED)
    CHECKPOINTING = RefusedUse(
        "`deepspeed.checkpointing`", Why.UNTRIED, "its buffers are global: use torch.utils.checkpoint"
    )
    NO_OPTIMIZER = RefusedUse("an engine without an optimizer", Why.MISUSE, "give deepspeed.initialize an optimizer")
    TAKEN_NAME = RefusedUse("an object under a name of the engine's own", Why.MISUSE, "use another one")
    PASSED_TWICE = RefusedUse("a part of the engine, passed beside it", Why.MISUSE, "it is protected already")
    LAUNCHER = RefusedUse(
        "`deepspeed` with `--elastic_training`, `--no_python` or `--bind_cores_to_rank`", Why.INHERENT, _LAUNCHED
    )
    OTHER_COUNT = RefusedUse(
        "a hostfile or `--num_gpus` of another number of ranks", Why.MISUSE, "`deadpool run` starts the processes"
    )
