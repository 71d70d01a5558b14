"""What this integration uses of torchtitan, and which versions of it were tested."""

from __future__ import annotations

from deadpool.integrations.library_check import Library, Uses

_TRAINER = (
    Uses(
        "torchtitan.trainer:Trainer",
        has=(
            *("checkpointer", "config", "dataloader", "device", "loss_fn", "lr_schedulers", "metrics_processor"),
            *("model_parts", "optimizers", "parallel_dims", "step", "validator"),
        ),
        calls={"train": "", "state_dict": "", "load_state_dict": "state_dict"},
        overrides={
            "should_continue_training": "",
            "batch_generator": "data_iterable",
            "train_step": "data_iterator",
        },
    ),
    Uses("torchtitan.train", calls={"main": ""}, has=("ConfigManager",)),
    Uses("torchtitan.config:ConfigManager", calls={"parse_args": "args"}),
    Uses("torchtitan.tools.utils:GarbageCollection", calls={"collect": "reason"}),
    Uses("torchtitan.distributed.parallel_dims:ParallelDims", has=("world_size",)),
)
_PARTS = (
    Uses(
        "torchtitan.components.checkpointer:CheckpointManager",
        has=("enable", "last_save_model_only", "pg"),
        calls={"load": "...", "save": "curr_step, last_step", "_create_checkpoint_id": "step"},
    ),
    Uses("torchtitan.components.loss:ChunkedLossWrapper", has=("lm_head",)),
    Uses("torchtitan.components.metrics:BaseLogger"),
    Uses(
        "torchtitan.components.metrics:MetricsProcessor",
        has=("logger", "time_last_log"),
        calls={"log": "..."},
        overrides={"_build_metric_logger": "*, ..."},
    ),
    Uses("torchtitan.components.validate:Validator", calls={"validate": "..."}),
    Uses("torchtitan.components.dataloader:BaseDataLoader", calls={"state_dict": "", "load_state_dict": "state_dict"}),
    Uses("torchtitan.components.optimizer:OptimizersContainer", has=("optimizers",)),
    Uses("torchtitan.components.optimizer.lr_scheduler:LRSchedulersContainer", has=("schedulers",)),
)
_SETTINGS = (
    Uses(
        "torchtitan.trainer:Trainer.Config",
        has=("comm", "compile", "parallelism", "profiler", "training", "validator"),
    ),
    Uses("torchtitan.components.validate:Validator.Config", has=("enable",)),
    Uses("torchtitan.config.configs:TrainingConfig", has=("disable_cuda_graphs", "enable_cpu_offload")),
    Uses("torchtitan.config.configs:ParallelismConfig", has=("enable_fsdp_symm_mem", "pipeline_parallel_degree")),
    Uses("torchtitan.config.configs:CompileConfig", has=("enable_async_tensor_parallel",)),
    Uses("torchtitan.config.configs:CommConfig", has=("mode",)),
    Uses("torchtitan.tools.profiler:Profiler.Config", has=("enable_memory_snapshot", "enable_profiling")),
)

LIBRARIES = (Library(package="torchtitan", tested=("0.3",), relies_on=(*_TRAINER, *_PARTS, *_SETTINGS)),)
