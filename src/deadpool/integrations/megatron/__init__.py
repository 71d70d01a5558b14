"""Protected steps for training loops with Megatron-Core.

    from deadpool.integrations.megatron import protect

    job = protect(model_chunks, optimizer=optimizer, scheduler=scheduler, data=batches)
    for step in job.steps(count):
        with step:
            ...  # zero_grad_buffer, the forward and backward function, optimizer.step, scheduler.step

The loop is yours, so nothing of Megatron's is entered again. What it keeps beside model and optimizer is either state
(state.py: random numbers, loss scale, counters of microbatches, sums of auxiliary losses, what bucket groups have
learnt in their first batch) or left over from a step that was cut off (leftovers.py: gradient buffers, handles, running
timers).
"""

from __future__ import annotations

from deadpool.integrations.library_check import importing
from deadpool.integrations.megatron.relies_on import LIBRARIES

with importing(LIBRARIES):
    from deadpool.integrations.megatron.hooks import protect
    from deadpool.integrations.megatron.pretrain import protect_pretrain

__all__ = ["protect", "protect_pretrain"]
