"""A generator that a fault's exception has passed through is finished: whoever asks it for more gets StopIteration.

A script may read its batches from one (`batches = cycle(loader)`) and keep it for all steps. If the exception came out
of it, because a collective failed inside of it, the step cannot be redone with it, and a script that takes
StopIteration for the end of an epoch would go on wrongly. A fresh process makes its own.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from types import CodeType, GeneratorType


def exhausted_generator(error: BaseException) -> str | None:
    """Why the step cannot be redone in this process, if some generator that still lives was ended by the exception."""
    codes = set(_generator_codes(error))
    if not codes:  # nearly always: looking at every object there is takes its time
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
