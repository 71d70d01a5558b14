"""Finds the pipeline schedules that the script makes, because users pass modules to protect(), not schedules.

The constructor of every schedule calls that of _PipelineSchedule, which is wrapped before the script runs, so that
schedules made after protect() are known too. They are held by weak references, in order of creation.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

from deadpool.backend.torch_versions import PipelineSchedule, PipelineStage

_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_inferring: weakref.WeakSet[Any] = weakref.WeakSet()  # stages to which the script gave no shapes


def watch_schedules() -> None:
    """Called once per process, before the script's first line."""
    call_after_init(PipelineSchedule, lambda schedule: _known.__setitem__(next(_numbers), schedule))
    call_after_init(PipelineStage, _note_shapes)


def call_after_init(kind: Any, then: Callable[[Any], None]) -> None:
    """Makes the constructor of `kind` call `then` with each new object. A second call for a class does nothing."""
    if hasattr(kind.__init__, "__wrapped__"):
        return
    original = kind.__init__

    @functools.wraps(original)
    def init(made: Any, *arguments: Any, **keywords: Any) -> None:
        original(made, *arguments, **keywords)
        then(made)

    kind.__init__ = init


def _note_shapes(stage: Any) -> None:
    if getattr(stage, "inputs_meta", None) is None:
        _inferring.add(stage)


def infers_shapes(stage: Any) -> bool:
    """Whether the stage finds its shapes by running. Shapes that the script gave must not be forgotten, or torch 2.11
    would run a microbatch to find them."""
    return stage in _inferring


def schedules() -> list[Any]:
    return list(_known.values())


def stages_of(schedule: Any) -> list[Any]:
    """One stage, or several with interleaving; none if the constructor raised."""
    stage = getattr(schedule, "_stage", None)
    return list(getattr(schedule, "_stages", [])) if stage is None else [stage]
