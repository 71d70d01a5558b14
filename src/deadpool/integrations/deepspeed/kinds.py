"""Which leftovers an engine has, by the class of its optimizer."""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch.optim import Optimizer

from deadpool.errors import ConfigError
from deadpool.integrations.deepspeed.leftovers import Bf16, Leftovers, Unfused, Zero12
from deadpool.integrations.deepspeed.zero3 import Zero3

_KINDS: dict[type, type[Leftovers]] = {
    FP16_UnfusedOptimizer: Unfused,
    BF16_Optimizer: Bf16,
    DeepSpeedZeroOptimizer: Zero12,
    DeepSpeedZeroOptimizer_Stage3: Zero3,
}


def leftovers_of(engine: Any) -> Leftovers:
    kind = type(engine.optimizer)
    if kind in _KINDS:
        return _KINDS[kind](engine)
    if isinstance(engine.optimizer, Optimizer):
        return Leftovers(engine)
    raise ConfigError(
        f"an engine whose optimizer is a {kind.__name__} cannot be protected, because it was never tried: ZeRO stages "
        "1 to 3 are accepted, and stage 0 with optimizers of torch"
    )
