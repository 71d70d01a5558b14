"""What this integration, and the one with transformers, use of accelerate, and which versions of it were tested."""

from __future__ import annotations

from deadpool.integrations.library_check import Library, Uses

_LOADERS = (
    Uses("accelerate.state:GradientState", has=("dataloader_references", "sync_gradients")),
    Uses(
        "accelerate.data_loader:DataLoaderShard", has=("base_dataloader", "gradient_state", "iteration", "skip_batches")
    ),
    Uses(
        "accelerate.data_loader:DataLoaderDispatcher",
        has=("_drop_last", "base_dataloader", "gradient_state", "iteration", "skip_batches", "split_batches", "state"),
    ),
    Uses("accelerate.data_loader", calls={"skip_first_batches": "dataloader, num_batches"}),
)
_LOOP = (
    Uses(
        "accelerate:Accelerator",
        has=(
            *("_optimizers", "_schedulers", "distributed_type", "gradient_state"),
            *("mixed_precision", "num_processes", "scaler", "state", "step", "sync_gradients"),
        ),
    ),
    Uses("accelerate.optimizer:AcceleratedOptimizer", has=("_is_overflow", "optimizer")),
    Uses("accelerate.scheduler:AcceleratedScheduler", has=("scheduler",)),
    Uses("accelerate.utils:DistributedType", has=("FSDP", "MULTI_CPU", "MULTI_GPU", "NO")),
    Uses("accelerate.utils:FullyShardedDataParallelPlugin", has=("cpu_offload", "fsdp_version")),
)
_LAUNCHER = (
    Uses("accelerate.commands.launch", calls={"launch_command_parser": "", "_validate_launch_command": "args"}),
    Uses(
        "accelerate.utils.launch",
        calls={"prepare_multi_gpu_env": "args", "prepare_simple_launcher_cmd_env": "args"},
    ),
)

LIBRARIES = (Library(package="accelerate", tested=("1.15",), relies_on=(*_LOADERS, *_LOOP, *_LAUNCHER)),)
