"""Finds a generator that the exception of a fault has ended: from then on it only raises StopIteration.

A script may read its batches from a generator (`batches = cycle(loader)`) and keep it for all steps. If a collective
fails inside the generator, the exception ends it. The step cannot be redone with it, and a script that takes
StopIteration for the end of an epoch would go on with wrong data. A fresh process makes a new generator.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from types import CodeType, GeneratorType


def exhausted_generator(error: BaseException) -> str | None:
    """The reason why the step cannot be redone in this process, if the script still holds a generator that ended."""
    codes = set(_generator_codes(error))
    if not codes:  # nearly always, and a search through all objects takes long
        return None
    for each in gc.get_objects():
        if isinstance(each, GeneratorType) and each.gi_frame is None and each.gi_code in codes:
            return f"the exception has ended the generator {each.__qualname__}(), which the script still holds"
    return None


def _generator_codes(error: BaseException) -> Iterator[CodeType]:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_flags & inspect.CO_GENERATOR:
            yield trace.tb_frame.f_code
        trace = trace.tb_next
