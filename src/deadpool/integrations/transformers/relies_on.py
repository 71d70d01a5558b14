"""What this integration uses of transformers, accelerate and TRL, and which versions of them were tested."""

from __future__ import annotations

from deadpool.integrations.library_check import Library, Uses

_FRAME = "*, epoch, train_dataloader, num_update_steps_per_epoch, resume_from_checkpoint, epochs_trained"

TRANSFORMERS = Library(
    package="transformers",
    tested=("5.22", "5.23"),
    relies_on=(
        Uses(
            "transformers:Trainer",
            has=(
                *("_tr_loss", "accelerator", "args", "callback_handler", "control", "is_deepspeed_enabled"),
                *("lr_scheduler", "model", "model_wrapped", "optimizer", "state", "train_dataset"),
            ),
            calls={
                "train": "resume_from_checkpoint, ...",
                "predict": "...",
                "_get_output_dir": "trial",
            },
            overrides={
                "_prepare_for_training": "max_steps, train_dataloader, resume_from_checkpoint",
                "_run_epoch": f"{_FRAME}, steps_trained_in_current_epoch, ...",
                "get_batch_samples": "...",
                "_load_rng_state": "checkpoint",
                "_maybe_log_save_evaluate": "...",
                "evaluate": "...",
                "_save_checkpoint": "model, trial, ...",
            },
        ),
        Uses(
            "transformers:TrainingArguments",
            has=(
                *("auto_find_batch_size", "dataloader_persistent_workers", "device", "eval_strategy"),
                *("gradient_accumulation_steps", "ignore_data_skip", "should_save"),
                "world_size",
            ),
        ),
        Uses(
            "transformers.trainer_callback:CallbackHandler",
            has=("callbacks",),
            calls={"on_epoch_begin": "args, state, control"},
            overrides={"call_event": "event, args, state, control"},
        ),
        Uses("transformers.trainer_callback:TrainerCallback", has=("on_train_begin", "on_epoch_begin")),
        Uses("transformers.trainer_callback:DefaultFlowCallback"),
        Uses("transformers.trainer_callback:TrainerState", has=("global_step", "log_history", "num_train_epochs")),
        Uses("transformers.trainer_callback:TrainerControl", has=("should_epoch_stop", "should_training_stop")),
        Uses("transformers.trainer_utils", has=("PREFIX_CHECKPOINT_DIR",)),
        Uses("transformers.trainer", calls={"skip_first_batches": "dataloader, num_batches"}),
    ),
)

ACCELERATE = Library(
    package="accelerate",
    tested=("1.15",),
    relies_on=(
        Uses("accelerate:Accelerator", has=("gradient_state", "scaler", "step")),
        Uses("accelerate.state:GradientState", has=("dataloader_references",)),
        Uses("accelerate.data_loader:DataLoaderShard", has=("base_dataloader", "skip_batches")),
        Uses(
            "accelerate.data_loader:DataLoaderDispatcher",
            has=("_drop_last", "base_dataloader", "skip_batches", "split_batches", "state"),
        ),
        Uses("accelerate.data_loader", calls={"skip_first_batches": "dataloader, num_batches"}),
    ),
)

LIBRARIES = (TRANSFORMERS, ACCELERATE)

_GENERATING = ("_buffered_inputs", "tools", "environment_factories")

TRL = Library(
    package="trl",
    tested=("1.16",),
    relies_on=(
        Uses("trl:GRPOTrainer", has=_GENERATING),
        Uses("trl:RLOOTrainer", has=("_buffered_inputs",)),
        Uses("trl:GRPOConfig", has=("use_vllm", "use_transformers_continuous_batching")),
        Uses("trl:RLOOConfig", has=("use_vllm", "use_transformers_continuous_batching")),
        # TRL uses the same names of transformers, where they are the older of two.
        Uses("transformers:TrainingArguments", has=("gradient_checkpointing", "gradient_checkpointing_kwargs")),
        Uses(
            "transformers:PreTrainedModel",
            has=("is_gradient_checkpointing",),
            calls={"gradient_checkpointing_enable": "gradient_checkpointing_kwargs"},
        ),
    ),
)
"""What an integration with TRL relies on, for trainers that generate what they train on."""
