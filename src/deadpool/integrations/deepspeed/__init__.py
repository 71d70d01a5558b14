"""Protected steps for DeepSpeed's engine, whose training loop is yours.

    from deadpool.integrations.deepspeed import protect

    engine, *_ = deepspeed.initialize(model=model, config=config)
    job = protect(engine, data=loader)

    for step in job.steps(1000):
        with step:
            for _ in range(engine.gradient_accumulation_steps()):
                loss = engine(next(loader))
                engine.backward(loss)
                engine.step()

A step is one update with all of its micro batches. The engine's counters, its loss scaler and its scheduler are
captured beside parameters, master weights and moments (engine.py). What a step that was cut off leaves in DeepSpeed's
buckets, hooks and gradients is dropped (leftovers.py, zero3.py).
"""

from __future__ import annotations

from deadpool.integrations.deepspeed.relies_on import LIBRARIES
from deadpool.integrations.library_check import importing

with importing(LIBRARIES):
    from deadpool.integrations.deepspeed.engine import protect

__all__ = ["protect"]
