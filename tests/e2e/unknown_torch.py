"""A script that meets a torch of which nobody has heard yet."""

import torch

torch.__version__ = "2.99.0"

import deadpool  # noqa: E402

pool = deadpool.join(backend="gloo")
model = torch.nn.Linear(2, 2)
job = pool.protect(model=model)
for step in job.steps(1):
    with step:
        pass
