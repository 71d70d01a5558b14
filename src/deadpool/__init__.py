"""DeadPool keeps a PyTorch training job running when machines die.

    torch.distributed.init_process_group("gloo")
    job = deadpool.protect(model=model, optimizer=optimizer)
    for step in job.steps(1000):
        with step:
            ...

Names that bring torch load on first use: coordinator, agent and command line run without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deadpool.errors import ConfigError, DeadPoolError, JobFailed, StateError

if TYPE_CHECKING:
    from deadpool.trainer.adapters import Adapter
    from deadpool.trainer.interface import Job, Step
    from deadpool.trainer.protect import JobRank, join, protect

    first_start: bool

__version__ = "0.1.0"
__all__ = [
    "Adapter",
    "ConfigError",
    "DeadPoolError",
    "Job",
    "JobFailed",
    "JobRank",
    "StateError",
    "Step",
    "first_start",
    "join",
    "protect",
]


def __getattr__(name: str) -> Any:
    if name in ("protect", "join", "JobRank", "Pool"):
        from deadpool.trainer import protect as module

        return getattr(module, "JobRank" if name == "Pool" else name)  # Pool is its former name, for one release
    if name == "first_start":  # whether this is the very first process of its rank in this job
        from deadpool.trainer.first_start import ask

        return ask()
    if name in ("Job", "Step"):
        from deadpool.trainer import interface

        return getattr(interface, name)
    if name == "Adapter":
        from deadpool.trainer.adapters import Adapter

        return Adapter
    raise AttributeError(f"module 'deadpool' has no attribute {name!r}")
