"""What this integration uses of DeepSpeed, and which versions of it were tested.

Left out, because nothing shows it: the engine's `module`, which is put into its dictionary by name.
"""

from __future__ import annotations

from deadpool.integrations.library_check import Library, Uses

_ENGINE = (
    Uses(
        "deepspeed.runtime.engine:DeepSpeedEngine",
        has=(
            *("_config", "_global_grad_norm", "_is_gradient_accumulation_boundary", "_manual_backward_expected"),
            *("_running_engine_step", "_step_applied", "_unmanaged_backward_count", "basic_optimizer"),
            *("data_parallel_group", "global_samples", "global_steps", "has_moe_layers", "inside_no_sync_ctxt"),
            *("is_compiled", "losses", "lr_scheduler", "micro_steps", "mpu", "optimizer"),
            *("seq_data_parallel_group", "skipped_steps", "timers", "tput_timer", "training_dataloader"),
            "warn_unscaled_loss",
        ),
        calls={
            "autotp_size": "",
            "zero_optimization_stage": "",
            "managed_gradient_accumulation": "",
            "torch_autocast_enabled": "",
            "data_efficiency_enabled": "",
            "flops_profiler_enabled": "",
            "autotuning_enabled": "",
            "is_deepcompile_enabled": "",
        },
    ),
    Uses(
        "deepspeed.runtime.config:DeepSpeedConfig",
        has=("gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu", "zero_config"),
    ),
    Uses(
        "deepspeed.runtime.zero.config:DeepSpeedZeroConfig",
        has=(
            *("offload_optimizer", "offload_param", "overlap_comm", "zenflow", "zero_hpz_partition_size"),
            *("zero_quantized_gradients", "zero_quantized_nontrainable_weights", "zero_quantized_weights"),
        ),
    ),
    Uses("deepspeed.utils.timer:SynchronizedWallClockTimer", calls={"get_timers": ""}),
    Uses("deepspeed.utils.timer:SynchronizedWallClockTimer.Timer", calls={"reset": ""}),
    Uses("deepspeed.utils.timer:ThroughputTimer", has=("started",)),
    Uses("deepspeed.accelerator", calls={"get_accelerator": ""}),
    Uses(
        "deepspeed.accelerator.abstract_accelerator:DeepSpeedAccelerator",
        calls={"is_synchronized_device": ""},
    ),
    Uses("deepspeed.runtime.activation_checkpointing.checkpointing", calls={"is_configured": ""}),
)
_BACKWARD = Uses(
    "deepspeed.runtime.base_optimizer:BackwardHookStateManager",
    has=("backward_active_depth", "remaining_grad_acc_hooks"),
    calls={"reset_for_new_step": ""},
)
_STAGES_0_TO_2 = (
    Uses("deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer", has=("fp16_groups", "optimizer")),
    Uses(
        "deepspeed.runtime.bf16_optimizer:BF16_Optimizer",
        has=(
            *("_backward_hook_state", "_hp_optimizer_states_linked", "bf16_groups", "fp32_groups_has_gradients"),
            "optimizer",
        ),
        calls={"_lazy_init_hp_params_optimizer_state": "", "clear_hp_grads": ""},
    ),
    Uses(
        "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer",
        has=(
            *("_backward_hook_state", "_coalesce_grad_reduction", "_hp_optimizer_states_linked", "all_grad_tensors"),
            *("averaged_gradients", "bit16_groups", "extra_large_param_to_reduce", "ipg_buckets", "micro_step_id"),
            *("optimizer", "params_already_reduced", "previous_reduced_grads", "ready_for_gradients"),
        ),
        calls={
            "_lazy_init_hp_params_optimizer_state": "",
            "_release_ipg_buffers": "",
            "reset_partition_gradient_structures": "",
        },
    ),
    Uses(
        "deepspeed.runtime.zero.stage_1_and_2:IPGBucket",
        has=("buffer", "index", "reuse_events"),
        calls={"clear": ""},
    ),
    Uses("deepspeed.runtime.zero.stage_1_and_2", has=("grad_accum",)),
    Uses("deepspeed.utils.mixed_precision_linkage", has=("_hp_mapping",)),
    Uses("deepspeed.utils.tensor_fragment:tensor_fragment", has=("optim_fragment",)),
)
_STAGE_3 = (
    Uses(
        "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3",
        has=(
            *("_backward_hook_state", "_coalesce_grad_reduction", "_offload_boundary_param_ids"),
            *("averaged_gradients", "fp16_groups", "fp16_partitioned_groups_flat", "fp32_partitioned_groups_flat"),
            *("grad_partitions_flat_buffer", "inf_or_nan_tracker", "ipg_buckets", "micro_step_id", "optimizer"),
            *("param_names", "param_reduce_events", "parameter_offload", "params_already_reduced"),
            "sub_group_to_group_id",
        ),
        overrides={"partition_grads": "params_to_release, grad_partitions", "_pre_step": ""},
    ),
    Uses("deepspeed.runtime.zero.stage3:IPGBucketZ3", has=("params",), calls={"clear_params": ""}),
    Uses(
        "deepspeed.runtime.zero.parameter_offload",
        has=(
            *("FWD_MODULE_STACK", "_in_forward", "applied_pre_backward_ref_cnt", "ds_grads_remaining"),
            *("ds_inflight_param_registry", "ds_recompute_parameters"),
        ),
    ),
    Uses(
        "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload",
        has=(
            *("_DeepSpeedZeRoOffload__allgather_stream", "_max_available_parameters_in_numel"),
            *("_max_reuse_distance_in_numel", "_prefetch_bucket_sz", "fast_sharding_for_leaf_module"),
            *("log_trace_cache_warnings", "module", "param_coordinator", "timers"),
            *("zero_quantized_nontrainable_weights", "zero_quantized_weights"),
        ),
    ),
    Uses(
        "deepspeed.runtime.zero.partitioned_param_coordinator",
        overrides={"assert_ints_same_as_other_ranks": "ints"},
    ),
    Uses(
        "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator",
        calls={
            "__init__": "*, prefetch_bucket_sz, max_reuse_distance_in_numel, max_available_parameters_in_numel, "
            "allgather_stream, inflight_param_registry, prefetch_nvme, timers, zero_quantized_weights, "
            "zero_quantized_nontrainable_weights, fast_sharding_for_leaf_module, log_trace_cache_warnings"
        },
    ),
    Uses(
        "deepspeed.runtime.zero.partition_parameters",
        has=(
            *("_external_params", "ds_active_sub_modules", "ds_id", "ds_status", "ds_tensor"),
            "is_external_param",
        ),
        calls={"free_param": "param"},
    ),
    Uses("deepspeed.runtime.zero.partition_parameters:AllGatherCoalescedHandle", calls={"free_buffer": ""}),
    Uses("deepspeed.runtime.zero.partition_parameters:ZeroParamStatus", has=("NOT_AVAILABLE",)),
)
_LAUNCHER = Uses(
    "deepspeed.launcher.runner",
    has=("DEEPSPEED_ENVIRONMENT_NAME", "DEEPSPEED_ENVIRONMENT_PATHS"),
    calls={
        "parse_args": "args",
        "fetch_hostfile": "hostfile_path",
        "parse_inclusion_exclusion": "resource_pool, inclusion, exclusion",
    },
)

_RELIES_ON = (*_ENGINE, _BACKWARD, *_STAGES_0_TO_2, *_STAGE_3, _LAUNCHER)
LIBRARIES = (Library(package="deepspeed", tested=("0.19",), relies_on=_RELIES_ON),)
