"""The versions of torch that the adapters were tested with, and how a trainer recovers under another one.

Adapters change internals of DDP, FSDP2 and process groups, and a difference between two versions of torch may lead to
wrong numbers without an error. So with an untested torch the job warns, and survivors of a fault do not keep their
processes: these end after unwinding, and fresh ones load the ranks' state from the memory of their own nodes.
"""

from __future__ import annotations

import re

import torch

OLDEST, NEWEST = (2, 11), (2, 13)


def is_known(version: str | None = None) -> bool:
    """Compares the first two numbers of the version, by default that of this torch. Adapters depend on no others."""
    numbers = re.match(r"(\d+)\.(\d+)", version or torch.__version__)
    return numbers is not None and OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST


def recovers_in_place(setting: str, version: str | None = None) -> bool:
    """`setting` is `in_place` of the configuration: auto, always or never."""
    return setting == "always" or (setting == "auto" and is_known(version))


def warning(setting: str, version: str | None = None) -> str | None:
    """The warning for an untested torch; None if this torch is tested."""
    if is_known(version):
        return None
    known = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    if setting == "always":
        way = "survivors of a fault keep their processes all the same, because of in_place='always'"
    else:
        way = "survivors of a fault restart their processes from memory, which is slower and as exact"
    return f"DeadPool was not tested with torch {version or torch.__version__} (tested: {known}): {way}"
