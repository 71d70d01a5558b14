"""What the integration with Megatron-Core refuses, and why."""

from __future__ import annotations

from deadpool.integrations.refusals import Refusals, RefusedUse, Why

_SCALES = "scales and their history are kept outside of the state"
_LOSSES = "the sums of their losses are not captured"
_UNTRIED = "no fault was tried with it: `protect(..., force=True)` accepts it; compare the losses with those of an "
_UNTRIED += "unprotected run"


class MegatronRefusal(Refusals):
    FP8 = RefusedUse("fp8, fp4", Why.NOT_BUILT, _SCALES)
    FP8_GATHER = RefusedUse("`fp8_param_gather`", Why.NOT_BUILT, _SCALES)
    CUDA_GRAPHS = RefusedUse("CUDA graphs", Why.NOT_BUILT, "they hold collectives of groups that are rebuilt")
    OTHER_TRACKER = RefusedUse(
        "trackers of random numbers for CUDA graphs or of Transformer Engine",
        Why.NOT_BUILT,
        "the states of such a tracker are not captured",
    )
    OTHER_CHUNK = RefusedUse(
        "Megatron's FSDP and torch's, model chunks without Megatron's `DistributedDataParallel`",
        Why.NOT_BUILT,
        "other buffers",
    )
    SEVERAL_INSTANCES = RefusedUse(
        "`num_distributed_optimizer_instances` above 1", Why.NOT_BUILT, "gradients are reduced on a stream of their own"
    )
    OTHER_OPTIMIZER = RefusedUse("Muon and layer-wise optimizers", Why.NOT_BUILT, "state in other places")
    OPTIMIZER_OFFLOAD = RefusedUse(
        "`optimizer_cpu_offload`", Why.NOT_BUILT, "its state is spread over several optimizers"
    )
    PRECISION_AWARE = RefusedUse(
        "`use_precision_aware_optimizer`", Why.NOT_BUILT, "parameters are in the optimizer's own format"
    )
    GATHER_IN_STEP = RefusedUse(
        "`overlap_param_gather_with_optimizer_step`", Why.INHERENT, "parameters are in flight when a step ends"
    )
    QK_CLIP = RefusedUse("`qk_clip`", Why.NOT_BUILT, "it changes parameters outside of the optimizer")
    ACTIVATION_OFFLOAD = RefusedUse(
        "offloading of activations", Why.NOT_BUILT, "what a step that was cut off has moved is not dropped"
    )
    MULTI_TOKEN = RefusedUse("multi-token prediction", Why.NOT_BUILT, _LOSSES)
    ATTENTION_VARIANT = RefusedUse("`experimental_attention_variant`", Why.NOT_BUILT, _LOSSES)
    RERUN = RefusedUse(
        "a rerun state machine that is not `RerunMode.DISABLED`",
        Why.INHERENT,
        "it runs steps again itself. Disabled, it still looks for NaN",
    )
    NOT_ZEROED = RefusedUse(
        "a step without `zero_grad_buffer()` on every chunk",
        Why.INHERENT,
        "gradients that are added up over steps would be lost: use more microbatches",
    )
    IN_FLIGHT = RefusedUse(
        "a step that ends while a bucket is communicated", Why.INHERENT, "a copy would be torn: finish gradients in it"
    )
    NO_PARAMETERS = RefusedUse(
        "a rank without parameters to train", Why.INHERENT, "nothing tells when the update begins"
    )
    PRETRAIN = RefusedUse(
        "Megatron-LM's `pretrain`",
        Why.UNTRIED,
        "built, and its first fault was not exact in all that is noted: `protect_pretrain(force=True)` accepts it",
    )
    PRETRAIN_GATHER = RefusedUse(
        "`--overlap-param-gather` in Megatron-LM's `pretrain`",
        Why.NOT_BUILT,
        "`train` switches its hooks off where it begins",
    )
    PRETRAIN_LOADER = RefusedUse(
        "`--dataloader-type external` and workers that persist in Megatron-LM's `pretrain`",
        Why.UNTRIED,
        "no fault was tried with it",
    )
    PRETRAIN_UNTRIED = RefusedUse(
        "RL, skipped iterations, phases, several validation sets, full validation, hybrid context parallelism, "
        "profiler, workload inspector, asynchronous checkpoints, exits by time, signal or autoresume, detection of "
        "stragglers and Megatron's FSDP in Megatron-LM's `pretrain`",
        Why.UNTRIED,
        "no fault was tried with it",
    )
    PRETRAIN_TWICE = RefusedUse("`train` called twice", Why.MISUSE, "a job has one loop")
    NO_PROGRAM = RefusedUse("the module without a script", Why.MISUSE, "give one that calls pretrain()")
    ENGINE = RefusedUse("Transformer Engine", Why.UNTRIED, _UNTRIED)
    FUSED_OPTIMIZER = RefusedUse("optimizers of apex and Transformer Engine", Why.UNTRIED, _UNTRIED)
    CONTEXT_PARALLEL = RefusedUse("context parallelism", Why.UNTRIED, _UNTRIED)
    ACCUMULATION_FUSION = RefusedUse("`gradient_accumulation_fusion`", Why.UNTRIED, _UNTRIED)
    TP_OVERLAP = RefusedUse("`tp_comm_overlap`", Why.UNTRIED, _UNTRIED)
    DELAYED_WGRAD = RefusedUse("`delay_wgrad_compute`", Why.UNTRIED, _UNTRIED)
    EXPERT_OVERLAP = RefusedUse("`overlap_moe_expert_parallel_comm`", Why.UNTRIED, _UNTRIED)
    SHARED_EXPERT_OVERLAP = RefusedUse("`moe_shared_expert_overlap`", Why.UNTRIED, _UNTRIED)
    DEFERRED_EMBEDDING = RefusedUse("`defer_embedding_wgrad_compute`", Why.UNTRIED, _UNTRIED)
    FLEX_DISPATCHER = RefusedUse('`moe_token_dispatcher_type="flex"`', Why.UNTRIED, _UNTRIED)
    NCCL_UB = RefusedUse("`nccl_ub`", Why.UNTRIED, _UNTRIED)
    FP32_SCATTER = RefusedUse("`reduce_scatter_with_fp32_accumulation`", Why.UNTRIED, _UNTRIED)
