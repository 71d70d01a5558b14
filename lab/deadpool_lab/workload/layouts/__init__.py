"""The parallel layouts of the workload, by name. Each file of this folder builds a family of them.

Listing them needs no torch: a layout's file is imported when the layout is built.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deadpool_lab.workload.layouts.assembly import Assembly, LayoutOptions

_FAMILIES: dict[str, tuple[str, ...]] = {
    "data_parallel": ("plain", "ddp", "ddp-accumulate", "ddp-unused", "zero1"),
    "sharded": ("fsdp2", "fsdp2-keep", "fsdp2-bf16", "hsdp"),
    "tensor_parallel": ("tp", "tp-sp", "fsdp2-tp"),
    "pipeline": ("pp-gpipe", "pp-1f1b", "pp-interleaved", "3d"),
    "context_parallel": ("cp",),
}

NAMES = tuple(name for names in _FAMILIES.values() for name in names)


def build(name: str, options: LayoutOptions) -> Assembly:
    """Builds the model and optimizer of this rank. Raises ConfigError if the number of ranks does not fit."""
    family = next(family for family, names in _FAMILIES.items() if name in names)
    assembled: Assembly = importlib.import_module(f"{__name__}.{family}").build(name, options)
    return assembled
