"""Protected steps for `lightning.pytorch.Trainer`.

    from deadpool.integrations.lightning import protect

    trainer = L.Trainer(...)
    protect(trainer)
    trainer.fit(model, data)

A step is one optimizer step with all that Lightning does until the next one begins: batches, accumulation, hooks,
logging, validation, checkpoints, the end of an epoch and the start of the next one. Where its loops stand is in their
progress objects, which are protected. After a fault they are put back, and the loops are entered again at the batch
that is due (training.py). A loop with `lightning.Fabric` needs none of this: write `for step in job.steps(count)`.
"""

from __future__ import annotations

from deadpool.integrations.library_check import importing
from deadpool.integrations.lightning.relies_on import LIBRARIES

with importing(LIBRARIES):
    from deadpool.integrations.lightning.hooks import protect

__all__ = ["protect"]
