"""Refuses context parallelism: torch cannot run it on the CPU, and on CUDA it has not been tried yet."""

from __future__ import annotations

from typing import NoReturn

from deadpool.errors import ConfigError
from deadpool_lab.workload.layouts.assembly import LayoutOptions


def build(layout: str, options: LayoutOptions) -> NoReturn:
    """Raises a ConfigError. For the CPU it quotes the error of torch 2.13 with gloo."""
    if options.device.type != "cpu":
        raise ConfigError(
            f"layout={layout!r} is not supported yet: context_parallel has not been tried with recoveries"
        )
    raise ConfigError(
        f"layout={layout!r} cannot be run on the CPU: torch's context_parallel takes flash, efficient or cuDNN "
        "attention of CUDA ('NotImplementedError: Operator aten._scaled_dot_product_flash_attention_for_cpu.default "
        "does not have a sharding strategy registered')"
    )
