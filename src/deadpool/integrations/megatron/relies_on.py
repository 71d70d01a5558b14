"""What this integration uses of Megatron-Core, and which versions of it were tested."""

from __future__ import annotations

from deadpool.integrations.library_check import Library, Uses

_DISTRIBUTED = (
    Uses(
        "megatron.core.distributed:DistributedDataParallel",
        has=(
            *("bucket_groups", "buffers", "config", "ddp_config", "dp_cp_group", "expert_parallel_bucket_groups"),
            *("expert_parallel_buffers", "expt_dp_group", "force_all_reduce", "params_with_grad"),
            "remove_forward_pre_hook_handles",
        ),
        calls={
            "enable_forward_pre_hook": "",
            "disable_forward_pre_hook": "*, param_sync",
            "zero_grad_buffer": "",
        },
    ),
    Uses(
        "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup",
        has=(
            *("buckets", "golden_per_param_grad_ready_counts", "grad_reduce_handle", "is_first_batch"),
            *("is_last_microbatch", "param_gather_dispatched", "param_gather_handle", "per_param_grad_ready_counts"),
        ),
    ),
    Uses("megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucket", has=("params_list",)),
    Uses("megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBuffer", has=("grad_data",)),
    Uses("megatron.core.distributed.param_and_grad_buffer", has=("main_grad",)),
    Uses("megatron.core.distributed.distributed_data_parallel", has=("grad_added_to_main_grad",)),
    Uses(
        "megatron.core.distributed:DistributedDataParallelConfig",
        has=(
            *("delay_wgrad_compute", "fp8_param_gather", "nccl_ub", "num_distributed_optimizer_instances"),
            *("overlap_param_gather", "reduce_scatter_with_fp32_accumulation"),
        ),
    ),
)
_OPTIMIZERS = (
    Uses("megatron.core.optimizer.optimizer:MegatronOptimizer", has=("config", "optimizer")),
    Uses("megatron.core.optimizer.optimizer:ChainedOptimizer", has=("chained_optimizers",)),
    Uses(
        "megatron.core.optimizer.optimizer:Float16OptimizerWithFloat16Params",
        has=("float16_groups", "fp32_from_float16_groups", "grad_scaler", "is_stub_optimizer"),
    ),
    Uses("megatron.core.optimizer.optimizer:FP32Optimizer", has=("is_stub_optimizer",)),
    Uses("megatron.core.optimizer.distrib_optimizer:DistributedOptimizer", has=("grad_scaler", "is_stub_optimizer")),
    Uses(
        "megatron.core.optimizer:OptimizerConfig",
        has=(
            *("optimizer_cpu_offload", "overlap_param_gather_with_optimizer_step", "timers"),
            "use_precision_aware_optimizer",
        ),
    ),
    Uses("megatron.core.optimizer_param_scheduler:OptimizerParamScheduler"),
)
_STATE = (
    Uses("megatron.core.num_microbatches_calculator", has=("_GLOBAL_NUM_MICROBATCHES_CALCULATOR",)),
    Uses("megatron.core.num_microbatches_calculator:RampupBatchsizeNumMicroBatchesCalculator", has=("rank",)),
    Uses("megatron.core.tensor_parallel.random", has=("_CUDA_RNG_STATE_TRACKER",)),
    Uses(
        "megatron.core.tensor_parallel.random:CudaRNGStatesTracker",
        has=("_current_state_name", "states_", "use_cudagraphable_rng"),
    ),
    Uses("megatron.core.transformer.moe.moe_utils", calls={"get_moe_layer_wise_logging_tracker": ""}),
    Uses("megatron.core.rerun_state_machine", calls={"get_rerun_state_machine": ""}),
    Uses(
        "megatron.core.rerun_state_machine:RerunStateMachine",
        has=("current_iteration", "first_iteration_complete", "large_value_counts", "max_values", "state"),
        calls={"get_mode": ""},
    ),
    Uses("megatron.core.rerun_state_machine:RerunMode", has=("DISABLED",)),
    Uses("megatron.core.rerun_state_machine:RerunState"),
    Uses("megatron.core.timers:Timers", has=("_timers",)),
    Uses("megatron.core.timers:Timer", has=("_start_time", "_started")),
)
_MODEL = (
    Uses(
        "megatron.core.transformer:TransformerConfig",
        has=(
            *("context_parallel_size", "cpu_offloading", "cuda_graph_impl", "defer_embedding_wgrad_compute"),
            *("delay_wgrad_compute", "enable_cuda_graph", "experimental_attention_variant", "external_cuda_graph"),
            *("fine_grained_activation_offloading", "fp4", "fp8", "grad_sync_func", "gradient_accumulation_fusion"),
            *("moe_shared_expert_overlap", "moe_token_dispatcher_type", "mtp_num_layers", "no_sync_func"),
            *("overlap_moe_expert_parallel_comm", "param_sync_func", "qk_clip", "timers", "tp_comm_overlap"),
        ),
    ),
)

_TESTED = ("0.16",)
LIBRARIES = (
    Library(package="megatron-core", tested=_TESTED, relies_on=(*_DISTRIBUTED, *_OPTIMIZERS, *_STATE, *_MODEL)),
)


def megatron_lm() -> Library:
    """What is used of Megatron-LM, which comes with Megatron-Core and has no version of its own."""
    step = "forward_step_func, data_iterator, model, optimizer, opt_param_scheduler, config, ..."
    state = "process_non_loss_data_func, config, checkpointing_context, non_loss_data_func, ..."
    uses = Uses(
        "megatron.training.training",
        calls={"get_args": "", "get_timers": ""},
        overrides={
            "train": f"forward_step_func, model, optimizer, opt_param_scheduler, train_data_iterator, "
            f"valid_data_iterator, {state}",
            "train_step": step,
            "training_log": "loss_dict, total_loss_dict, ...",
            "checkpoint_and_decide_exit": "model, optimizer, opt_param_scheduler, iteration, "
            "num_floating_point_operations_so_far, ...",
            "load_checkpoint": "...",
            "evaluate_and_print_results": "...",
            "save_checkpoint_and_time": "...",
            "build_pretraining_data_loader": "...",
        },
    )
    return Library(package="megatron-core", tested=_TESTED, relies_on=(uses,))
