"""Which pipeline schedules the script has made. Users protect modules, not schedules, so they are found here.

Every schedule's constructor ends in that of _PipelineSchedule, which is wrapped before the script runs: schedules made
after protect() are known too. They are held weakly, in the order in which they were made.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

_Base: Any = torch_schedules._PipelineSchedule
_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_inferring: weakref.WeakSet[Any] = weakref.WeakSet()  # stages to which the script gave no shapes


def watch_schedules() -> None:
    """Once per process, before the script's first line."""
    call_after_init(_Base, lambda schedule: _known.__setitem__(next(_numbers), schedule))
    call_after_init(PipelineStage, _note_shapes)


def call_after_init(kind: Any, then: Callable[[Any], None]) -> None:
    """Once per class, whoever asks again."""
    if hasattr(kind.__init__, "__wrapped__"):
        return
    stock = kind.__init__

    @functools.wraps(stock)
    def init(made: Any, *arguments: Any, **keywords: Any) -> None:
        stock(made, *arguments, **keywords)
        then(made)

    kind.__init__ = init


def _note_shapes(stage: Any) -> None:
    if getattr(stage, "inputs_meta", None) is None:
        _inferring.add(stage)


def infers_shapes(stage: Any) -> bool:
    """By running: shapes that were given must not be forgotten, or torch 2.11 would run a microbatch to find them."""
    return stage in _inferring


def schedules() -> list[Any]:
    return list(_known.values())


def stages_of(schedule: Any) -> list[Any]:
    """One, or several with interleaving; none where the constructor raised."""
    stage = getattr(schedule, "_stage", None)
    return list(getattr(schedule, "_stages", [])) if stage is None else [stage]
