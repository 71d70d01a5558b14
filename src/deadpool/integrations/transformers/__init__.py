"""Protected steps for `transformers.Trainer`.

    from deadpool.integrations.transformers import protect

    trainer = Trainer(model=model, args=args, train_dataset=data)
    protect(trainer)
    trainer.train()

A step is one optimizer update with all that Trainer does until the next one begins: batches, accumulation, clipping,
logging, evaluation, saving. Epoch and update are local variables of Trainer's loop. So after a fault its `_run_epoch`
is entered again at the update that is due, in the way in which Trainer resumes from a checkpoint: batches are skipped,
and the random numbers of that moment are put back (training.py).
"""

from __future__ import annotations

from deadpool.integrations.library_check import importing
from deadpool.integrations.transformers.relies_on import LIBRARIES

with importing(LIBRARIES):
    from deadpool.integrations.transformers.hooks import protect

__all__ = ["protect"]
