"""`protect`: the objects of an engine that have to survive, and the adapter for the rest."""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.engine import DeepSpeedEngine
from torch.optim.lr_scheduler import LRScheduler

from deadpool.errors import ConfigError
from deadpool.integrations.deepspeed.adapter import EngineAdapter
from deadpool.integrations.deepspeed.kinds import leftovers_of
from deadpool.integrations.deepspeed.position import Position
from deadpool.integrations.deepspeed.relies_on import LIBRARIES
from deadpool.integrations.deepspeed.supported import require_supported
from deadpool.integrations.library_check import require_suitable
from deadpool.trainer import current
from deadpool.trainer.interface import Job
from deadpool.trainer.pool import join


def protect(engine: DeepSpeedEngine, /, *, force: bool = False, **objects: object) -> Job:
    """Protects the engine, and returns the job whose `steps` is the training loop. Call it after
    `deepspeed.initialize`, once.

    `objects` are further ones whose state training changes, as for `deadpool.protect`: data above all. What belongs to
    the engine is found by itself. A DeepSpeed in which something is missing that this relies on is refused, and with
    `force` accepted. In a script that DeadPool did not start the same loop trains unprotected, and a note says so.
    """
    if current.session is not None:
        require_suitable(LIBRARIES, force=force)
        require_supported(engine)
    _require_no_part_of(engine, objects)
    leftovers = leftovers_of(engine)
    found: dict[str, Any] = {"model": leftovers.model, "optimizer": leftovers.torch_optimizer}
    found["engine"] = Position(engine, leftovers)
    if isinstance(engine.lr_scheduler, LRScheduler):  # DeepSpeed's own leave half of it out of their state_dict
        found["scheduler"] = engine.lr_scheduler
    for name in found.keys() & objects.keys():
        raise ConfigError(f"protect({name}=...): the engine's own is protected under this name, use another one")
    found |= objects
    return join().protect(adapters=[EngineAdapter(engine, leftovers)], **found)


def _require_no_part_of(engine: DeepSpeedEngine, objects: dict[str, object]) -> None:
    parts = {
        id(engine): "the engine",
        id(engine.module): "its model",
        id(engine.optimizer): "its optimizer",
        id(engine.basic_optimizer): "its optimizer",
    }
    for name, value in objects.items():
        if id(value) in parts:
            raise ConfigError(f"protect({name}=...) got {parts[id(value)]}, which is protected already: leave it out")
