"""What the integration with Lightning refuses, and why."""

from __future__ import annotations

from deadpool.integrations.refusals import Refusals, RefusedUse, Why

_UNTRIED = "no fault was tried with it"
_BUILT = "built, and no fault was tried with it yet: `protect(trainer, force=True)` accepts it"
_CHANGES = "they change the loop, the model or the time"
_CONTINUE = "a fresh process could not go on with it"
_COME_BACK = "their state would not come back"


class LightningRefusal(Refusals):
    ONE_RANK = RefusedUse("a job of one rank", Why.INHERENT, "start it with `deadpool run --nodes 2`")
    STRATEGY = RefusedUse("strategies other than `ddp` and `ModelParallelStrategy`", Why.UNTRIED, _UNTRIED)
    OTHER_LOADER = RefusedUse(
        "training loaders that are not torch's `DataLoader`, such as `StatefulDataLoader`",
        Why.UNTRIED,
        "the position of torch's is known",
    )
    RESUMED = RefusedUse("`fit(ckpt_path=...)`", Why.UNTRIED, _BUILT)
    NO_LENGTH = RefusedUse("an `IterableDataset` without a length", Why.UNTRIED, _BUILT)
    SEVERAL_LOADERS = RefusedUse("several training loaders", Why.UNTRIED, _BUILT)
    PERSISTENT_VALIDATION = RefusedUse(
        "`persistent_workers` of a validation loader",
        Why.NOT_BUILT,
        "a seed is drawn in the first validation only, and a process that takes part later would draw one",
    )
    KEPT_GRADIENTS = RefusedUse(
        "gradients that are added up over batches with `automatic_optimization = False`",
        Why.INHERENT,
        "each batch is a step then, and a redone step would lose what the one before left in gradients. "
        "`accumulate_grad_batches` is fine",
    )
    SKIPPED_EPOCH = RefusedUse("`on_train_batch_start` that returns -1", Why.NOT_BUILT, "epochs that end early")
    OWN_GENERATOR = RefusedUse(
        "generators of random numbers as attributes of module, data module or callbacks, unless you pass them",
        Why.NOT_BUILT,
        _COME_BACK,
    )
    MODEL_OF_CALLBACK = RefusedUse("models as attributes of callbacks, unless you pass them", Why.NOT_BUILT, _COME_BACK)
    OTHER_REDUCTION = RefusedUse(
        "`self.log` with a `reduce_fx` other than mean, sum, max and min", Why.NOT_BUILT, _CONTINUE
    )
    SYNC_GROUP = RefusedUse("`self.log` with `sync_dist_group`", Why.NOT_BUILT, _CONTINUE)
    RELOADED_LOADERS = RefusedUse("`reload_dataloaders_every_n_epochs`", Why.NOT_BUILT, _CHANGES)
    OVERFIT = RefusedUse("`overfit_batches`", Why.NOT_BUILT, _CHANGES)
    VALIDATION_BY_TIME = RefusedUse("validation by time", Why.INHERENT, "a redone step takes another time")
    DATALOADER_ITER = RefusedUse("a `training_step` that takes `dataloader_iter`", Why.NOT_BUILT, _CHANGES)
    CONFIGURE_CALLBACKS = RefusedUse("`configure_callbacks`", Why.NOT_BUILT, _CHANGES)
    CALLBACKS = RefusedUse(
        "BatchSizeFinder, LearningRateFinder, GradientAccumulationScheduler, Timer and `max_time`, BaseFinetuning, "
        "WeightAveraging, StochasticWeightAveraging",
        Why.NOT_BUILT,
        _CHANGES,
    )
    OTHER_TRAINER = RefusedUse("the Trainer of `pytorch_lightning`", Why.MISUSE, "use that of the package lightning")
    CALLED_TWICE = RefusedUse("`protect()` or `fit()` called twice", Why.MISUSE, "a job has one loop")
