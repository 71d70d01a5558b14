"""Protected steps for torchtitan's Trainer. In place of `torchtitan.train`, without a changed line:

    deadpool run --nodes 2 --spares 1 -m deadpool.integrations.torchtitan --module llama3 --config llama3_debugmodel

or in a script of your own:

    from deadpool.integrations.torchtitan import protect

    trainer = config.build()
    protect(trainer)
    trainer.train()

A step is one optimizer step with all that torchtitan does until the next one begins: batches, accumulation, clipping,
logging, checkpoint, validation. Trainer asks `should_continue_training()` where a step begins. After a fault its own
`train()` is entered again, as it is entered when torchtitan resumes from a checkpoint, but without reading one: model
and optimizer are in memory, and the step count is put back (training.py).
"""

from __future__ import annotations

from deadpool.integrations.library_check import importing
from deadpool.integrations.torchtitan.relies_on import LIBRARIES

with importing(LIBRARIES):
    from deadpool.integrations.torchtitan.hooks import protect

__all__ = ["protect"]
