"""Which torch the reset adapters are known to work with, and how a trainer recovers under another one.

Adapters reach into the insides of DDP, FSDP2 and process groups, and what changed there between two versions may show
as wrong numbers, not as an error. So a torch that nobody has tried is warned of, and survivors of a fault do not go on
in place: their processes end after unwinding, and fresh ones load the ranks' state from the memory of their own nodes.
"""

from __future__ import annotations

import re

import torch

OLDEST, NEWEST = (2, 11), (2, 13)


def is_known(version: str | None = None) -> bool:
    """By the first two numbers: what follows them has not changed what adapters touch. By default this torch."""
    numbers = re.match(r"(\d+)\.(\d+)", version or torch.__version__)
    return numbers is not None and OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST


def recovers_in_place(setting: str, version: str | None = None) -> bool:
    """`setting` is in_place of the configuration: auto, always or never."""
    return setting == "always" or (setting == "auto" and is_known(version))


def warning(setting: str, version: str | None = None) -> str | None:
    """What to tell people of this torch; None if it is known."""
    if is_known(version):
        return None
    known = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    way = "in place, as you forced it" if setting == "always" else "by restarting its processes from memory"
    return f"torch {version or torch.__version__} is not known to DeadPool (known: {known}): this job recovers {way}"
