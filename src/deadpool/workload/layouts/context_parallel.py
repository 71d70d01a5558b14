"""Context parallelism: refused. On the CPU torch cannot run it, on CUDA it has not been tried yet."""

from __future__ import annotations

from typing import NoReturn

from deadpool.errors import ConfigError
from deadpool.workload.layouts.assembly import Options


def build(layout: str, options: Options) -> NoReturn:
    """What torch 2.13 says when `context_parallel` is used with gloo on the CPU stands in the reason."""
    if options.device.type != "cpu":
        raise ConfigError(
            f"layout={layout!r} is not supported yet: context_parallel has not been tried with recoveries"
        )
    raise ConfigError(
        f"layout={layout!r} cannot be run on the CPU: torch's context_parallel takes flash, efficient or cuDNN "
        "attention of CUDA ('NotImplementedError: Operator aten._scaled_dot_product_flash_attention_for_cpu.default "
        "does not have a sharding strategy registered')"
    )
