"""What the integration with DeepSpeed refuses, and why."""

from __future__ import annotations

from deadpool.integrations.refusals import Refusal, Refusals, Why

_UNTRIED = "no fault was tried with it"
_MOVES = "state that moves between memories while a step runs was never tried"
_LAUNCHED = "such processes are not those that `deadpool run` starts"


class DeepSpeed(Refusals):
    ONE_RANK = Refusal("a job of one rank", Why.INHERENT, "start it with `deadpool run --nodes 2`")
    UNUSED_PARAMETER = Refusal(
        "a step of stage 3 in which a parameter gets no gradient (also in the first micro batch alone)",
        Why.INHERENT,
        "DeepSpeed 0.19 updates it with a gradient that an earlier step has left in its buffer; that gradient is not "
        "captured",
    )
    BETWEEN_UPDATES = Refusal(
        "a step that ends between two updates",
        Why.INHERENT,
        "gradients that are left would be lost if the next step is redone",
    )
    TRAINING_DATA = Refusal(
        "`training_data=` of `deepspeed.initialize`",
        Why.NOT_BUILT,
        "the position of its loader is not put back: use torch's DataLoader, and `protect(engine, data=loader)`",
    )
    FLOPS_PROFILER = Refusal("`flops_profiler`", Why.INHERENT, "its hooks cannot be put back")
    AUTOTUNING = Refusal("autotuning", Why.INHERENT, "it ends the script by itself")
    OVERLAP = Refusal(
        "`overlap_comm` on a device with streams", Why.UNTRIED, "stage 3 has it on by default: set it to false"
    )
    OFFLOAD_OPTIMIZER = Refusal("`offload_optimizer`", Why.UNTRIED, _MOVES)
    OFFLOAD_PARAM = Refusal("`offload_param`", Why.UNTRIED, _MOVES)
    QUANTIZED_WEIGHTS = Refusal("`zero_quantized_weights`", Why.UNTRIED, _UNTRIED)
    QUANTIZED_FROZEN = Refusal("`zero_quantized_nontrainable_weights`", Why.UNTRIED, _UNTRIED)
    QUANTIZED_GRADIENTS = Refusal("`zero_quantized_gradients`", Why.UNTRIED, _UNTRIED)
    ZENFLOW = Refusal("`zenflow`", Why.UNTRIED, _UNTRIED)
    HPZ = Refusal("`zero_hpz_partition_size`", Why.UNTRIED, _UNTRIED)
    OTHER_ENGINE = Refusal("pipelines and other engines", Why.UNTRIED, _UNTRIED)
    MPU = Refusal("an `mpu`", Why.UNTRIED, _UNTRIED)
    EXPERTS = Refusal("mixtures of experts", Why.UNTRIED, _UNTRIED)
    TENSOR_PARALLEL = Refusal("`tensor_parallel`", Why.UNTRIED, _UNTRIED)
    PARTIAL_DATA_PARALLEL = Refusal("a data parallel group of only some ranks", Why.UNTRIED, _UNTRIED)
    SEQUENCE_PARALLEL = Refusal("sequence parallelism", Why.UNTRIED, _UNTRIED)
    OTHER_OPTIMIZER = Refusal("Muon, LAMB and 1-bit optimizers", Why.UNTRIED, _UNTRIED)
    OTHER_WRAPPER = Refusal("optimizers without ZeRO that are not torch's, in fp16 or bf16", Why.UNTRIED, _UNTRIED)
    OWN_ACCUMULATION = Refusal("`managed_gradient_accumulation: false`", Why.UNTRIED, _UNTRIED)
    AUTOCAST = Refusal("`torch_autocast`", Why.UNTRIED, _UNTRIED)
    DATA_EFFICIENCY = Refusal("`data_efficiency`", Why.UNTRIED, _UNTRIED)
    COMPILED = Refusal("`engine.compile()`", Why.UNTRIED, _UNTRIED)
    CHECKPOINTING = Refusal(
        "`deepspeed.checkpointing`", Why.UNTRIED, "its buffers are global: use torch.utils.checkpoint"
    )
    NO_OPTIMIZER = Refusal("an engine without an optimizer", Why.MISUSE, "give deepspeed.initialize an optimizer")
    TAKEN_NAME = Refusal("an object under a name of the engine's own", Why.MISUSE, "use another one")
    PASSED_TWICE = Refusal("a part of the engine, passed beside it", Why.MISUSE, "it is protected already")
    LAUNCHER = Refusal(
        "`deepspeed` with `--elastic_training`, `--no_python` or `--bind_cores_to_rank`", Why.INHERENT, _LAUNCHED
    )
    OTHER_COUNT = Refusal(
        "a hostfile or `--num_gpus` of another number of ranks", Why.MISUSE, "`deadpool run` starts the processes"
    )
