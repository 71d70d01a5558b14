"""How a trainer recovers under which torch, and the warning for one that was not tested.

Adapters change internals of DDP, FSDP2 and process groups, and a difference between two versions of torch may lead to
wrong numbers without an error. So with an untested torch the job warns, and survivors of a fault do not keep their
processes: these end after unwinding, and fresh ones load the ranks' state from the memory of their own nodes.
"""

from __future__ import annotations

import torch

from deadpool.backend.torch_versions import is_tested, tested_range


def recovers_in_place(setting: str, version: str | None = None) -> bool:
    """`setting` is `in_place` of the configuration: auto, always or never."""
    return setting == "always" or (setting == "auto" and is_tested(version))


def warning(setting: str, version: str | None = None) -> str | None:
    """The warning for an untested torch; None if this torch is tested."""
    if is_tested(version):
        return None
    if setting == "always":
        way = "survivors of a fault keep their processes all the same, because of in_place='always'"
    else:
        way = "survivors of a fault restart their processes from memory, which is slower and as exact"
    return f"DeadPool was not tested with torch {version or torch.__version__} (tested: {tested_range()}): {way}"
