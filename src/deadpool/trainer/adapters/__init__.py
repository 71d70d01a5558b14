"""Which adapters a job needs. One file per framework of torch's own; plain.py says what an adapter is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from deadpool.trainer.adapters.ddp import DdpAdapter, ddp_modules
from deadpool.trainer.adapters.fsdp2 import Fsdp2Adapter, has_fsdp2
from deadpool.trainer.adapters.pipeline import PipelineAdapter
from deadpool.trainer.adapters.plain import Adapter, Negotiator, PlainAdapter

__all__ = [
    "Adapter",
    "DdpAdapter",
    "Fsdp2Adapter",
    "Negotiator",
    "PipelineAdapter",
    "PlainAdapter",
    "adapters_for",
    "negotiators",
]


def negotiators(adapters: Iterable[Adapter]) -> Iterator[Negotiator]:
    return (adapter for adapter in adapters if isinstance(adapter, Negotiator))


def adapters_for(modules: Iterable[nn.Module], *, plain: bool = False) -> list[Adapter]:
    """One adapter for each framework and wrapper found in the modules, to be applied in this order. `plain`: none that
    knows the inside of torch."""
    modules = list(modules)
    if plain:
        return [PlainAdapter(modules)]
    adapters: list[Adapter] = [DdpAdapter(module) for module in ddp_modules(modules)]
    if has_fsdp2(modules):
        adapters.append(Fsdp2Adapter(modules))
    return [*adapters, PipelineAdapter(), PlainAdapter(modules)]
