"""What this integration uses of Lightning, and which versions of it were tested.

Left out, because nothing shows them: the sums `value` and `cumulated_batch_size` of a logged value, which torchmetrics
sets by name.
"""

from __future__ import annotations

from deadpool.integrations.library_check import Library, Uses

_RESULT = "lightning.pytorch.trainer.connectors.logger_connector.result"
_HOW = "fx, name, prog_bar, logger, on_step, on_epoch, enable_graph, add_dataloader_idx, sync_dist, rank_zero_only"

_TRAINER = Uses(
    "lightning.pytorch:Trainer",
    has=(
        *("_checkpoint_connector", "_logger_connector", "accumulate_grad_batches", "fit_loop"),
        *("global_step", "lightning_module", "loggers", "lr_scheduler_configs", "max_epochs", "max_steps"),
        *("num_training_batches", "optimizers", "precision_plugin", "should_stop", "strategy", "training"),
        "world_size",
    ),
)
_SET_ON_TRAINER = (
    Uses("lightning.pytorch.trainer.connectors.callback_connector", has=("callbacks",)),
    Uses(
        "lightning.pytorch.trainer.connectors.checkpoint_connector:_CheckpointConnector",
        calls={"_select_ckpt_path": "..."},
    ),
    Uses(
        "lightning.pytorch.trainer.connectors.data_connector",
        has=("datamodule", "reload_dataloaders_every_n_epochs"),
    ),
    Uses("lightning.pytorch.trainer.setup", has=("_val_check_time_interval", "overfit_batches")),
)
_LOOPS = (
    Uses(
        "lightning.pytorch.loops.loop:_Loop",
        has=("_restarting", "is_resuming", "restarting", "trainer"),
        calls={"on_iteration_done": ""},
    ),
    Uses(
        "lightning.pytorch.loops.fit_loop:_FitLoop",
        has=("_combined_loader", "_data_fetcher", "done", "epoch_loop", "epoch_progress", "skip"),
        calls={
            "setup_data": "",
            "reset": "",
            "on_run_start": "",
            "on_run_end": "",
            "advance": "",
            "on_advance_start": "",
            "on_advance_end": "",
        },
        overrides={"run": ""},
    ),
    Uses(
        "lightning.pytorch.loops.training_epoch_loop:_TrainingEpochLoop",
        has=("_batches_that_stepped", "_results", "batch_progress", "done", "global_step", "val_loop"),
        calls={"_should_check_val_fx": "data_fetcher"},
        overrides={"advance": "data_fetcher", "on_advance_end": "data_fetcher", "on_run_start": "data_fetcher"},
    ),
    Uses("lightning.pytorch.loops.evaluation_loop:_EvaluationLoop", has=("_results",)),
    Uses("lightning.pytorch.loops.progress:_BaseProgress", calls={"state_dict": ""}),
    Uses("lightning.pytorch.loops.progress:_Progress", has=("current", "total")),
    Uses("lightning.pytorch.loops.progress:_ProcessedTracker", has=("ready", "processed")),
    Uses("lightning.pytorch.loops.fit_loop", calls={"_select_data_fetcher": "trainer, stage"}),
    Uses("lightning.pytorch.loops.fetchers:_DataFetcher", has=("__iter__", "fetched", "length")),
    Uses("lightning.pytorch.loops.fetchers:_PrefetchDataFetcher", has=("batches",)),
    Uses("lightning.pytorch.utilities.combined_loader:_ModeIterator", has=("_idx",)),
    Uses("lightning.pytorch.loops.fetchers:_DataLoaderIterDataFetcher"),
    Uses("lightning.pytorch.utilities.combined_loader:_MaxSizeCycle", has=("_consumed",)),
    Uses("lightning.pytorch.utilities.combined_loader:CombinedLoader", has=("_iterator", "flattened")),
    Uses("lightning.fabric.utilities.data", calls={"_set_sampler_epoch": "dataloader, epoch"}),
)
_LOGGED = (
    Uses(
        f"{_RESULT}:_ResultCollection",
        has=("batch", "batch_size"),
        calls={
            "log": f"*, {_HOW}, value, reduce_fx, metric_attribute, sync_dist_fn, batch_size",
            "reset": "",
        },
    ),
    Uses(
        f"{_RESULT}:_ResultMetric",
        has=("_computed", "_forward_cache", "_update_count", "has_reset", "is_tensor", "meta"),
    ),
    Uses(
        f"{_RESULT}:_Metadata",
        has=(
            *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"),
            *("metric_attribute", "reduce_fx", "sync"),
        ),
    ),
    Uses(f"{_RESULT}:_Sync", has=("_group", "_should", "rank_zero_only")),
    Uses(
        "lightning.pytorch.trainer.connectors.logger_connector.logger_connector:_LoggerConnector",
        has=("_callback_metrics", "_first_loop_iter", "_logged_metrics", "_progress_bar_metrics"),
    ),
    Uses("torchmetrics:Metric", has=("_defaults", "_device", "_persistent", "_reductions")),
)
_CALLBACKS = (
    Uses("lightning.pytorch:Callback", has=("on_fit_start", "on_train_start", "on_train_epoch_start", "setup")),
    Uses(
        "lightning.pytorch.callbacks",
        has=(
            *("BaseFinetuning", "BatchSizeFinder", "GradientAccumulationScheduler", "LearningRateFinder"),
            *("ModelCheckpoint", "ProgressBar", "StochasticWeightAveraging", "Timer"),
        ),
    ),
    Uses("lightning.pytorch.callbacks.weight_averaging:WeightAveraging"),
    Uses(
        "lightning.pytorch.callbacks:ModelCheckpoint",
        has=("_fs", "dirpath"),
        overrides={"_save_checkpoint": "trainer, filepath"},
    ),
    Uses("lightning.pytorch.trainer.call", calls={"_call_callback_hooks": "trainer, hook_name"}),
    Uses("lightning.pytorch.loggers:Logger", has=("log_dir", "name", "root_dir", "save_dir", "version")),
    Uses("lightning.pytorch.loggers:CSVLogger", has=("_version", "version")),
    Uses("lightning.pytorch.loggers.logger:DummyLogger"),
)
_OTHERS = (
    Uses(
        "lightning.pytorch:LightningModule",
        has=("automatic_optimization",),
        calls={"configure_callbacks": ""},
    ),
    Uses("lightning.pytorch:LightningDataModule", calls={"state_dict": "", "load_state_dict": "state_dict"}),
    Uses("lightning.pytorch.strategies", has=("DDPStrategy", "ModelParallelStrategy")),
    Uses("lightning.pytorch.strategies:DDPStrategy", has=("model", "reduce", "root_device")),
    Uses("lightning.pytorch.strategies:ModelParallelStrategy", has=("model", "reduce", "root_device")),
    Uses("lightning.pytorch.plugins.precision:MixedPrecision", has=("scaler",)),
    Uses("lightning.pytorch.utilities.model_helpers", calls={"is_overridden": "method_name, instance"}),
)

LIBRARIES = (
    Library(
        package="lightning",
        tested=("2.6",),
        relies_on=(_TRAINER, *_SET_ON_TRAINER, *_LOOPS, *_LOGGED, *_CALLBACKS, *_OTHERS),
    ),
)
