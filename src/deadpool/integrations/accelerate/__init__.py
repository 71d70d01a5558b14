"""Protected steps for a loop of your own over what `accelerator.prepare` returns.

    from deadpool.integrations.accelerate import endless, protect

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    batches = endless(loader)
    job = protect(accelerator, model=model, data=batches)

    for step in job.steps(updates):
        with step:
            while True:
                with accelerator.accumulate(model):
                    loss = model(next(batches))
                    accelerator.backward(loss)
                    ...
                if accelerator.sync_gradients:
                    break

A step is one update with all of its micro batches. What Accelerate keeps from one update to the next is captured
(loop.py), and its loaders are brought to the place (data.py). In place of `accelerate launch`, with its arguments and
its configuration file:

    deadpool run --nodes 2 --spares 1 -m deadpool.integrations.accelerate --config_file FILE train.py ...
"""

from __future__ import annotations

from deadpool.integrations.accelerate.relies_on import LIBRARIES
from deadpool.integrations.library_check import importing

with importing(LIBRARIES):
    from deadpool.integrations.accelerate.loop import endless, protect

__all__ = ["endless", "protect"]
