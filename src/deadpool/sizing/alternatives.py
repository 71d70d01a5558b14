"""The same cluster and pool of spares under other systems, with what is assumed of each. Their intervals are chosen as
well for them as ours for us."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deadpool.sizing.failure_mix import PLANNED
from deadpool.sizing.goodput import Outlook
from deadpool.sizing.inputs import Inputs

TORCHRUN_RESTART_S = 22.8
PEER_RECOVERY_S = (20.0, 150.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    name: str
    goodput: float
    assumed: str


def alternatives(inputs: Inputs, ours: Outlook) -> tuple[Alternative, ...]:
    slow, fast = _standby(inputs, ours, PEER_RECOVERY_S[1]), _standby(inputs, ours, PEER_RECOVERY_S[0])
    return (_torchrun(inputs, ours), slow, fast)


def _torchrun(inputs: Inputs, ours: Outlook) -> Alternative:
    """Young's interval: a save of s seconds every sqrt(2 s / r) loses least."""
    faults, planned = _rates(ours)
    save_s, rate = ours.write_s, faults + planned
    every_s = max(save_s, inputs.step_s, math.sqrt(2 * save_s / rate)) if rate > 0 else inputs.seconds
    down_s = TORCHRUN_RESTART_S + inputs.build_s + ours.read_s
    redone = faults * every_s / 2
    goodput = (1 - ours.short.share) * max(0.0, 1 - redone) * math.exp(-rate * down_s) / (1 + save_s / every_s)
    assumed = (
        f"all workers restart: {TORCHRUN_RESTART_S:g} s (measured with 4 ranks, docs/benchmarks.md) + "
        f"{inputs.build_s:g} s to build + {ours.read_s:.0f} s to read; training stands still for {save_s:.0f} s per "
        f"save, every {every_s / 60:.0f} min (Young); half of that is redone; same spares; no time until a "
        "hang is noticed"
    )
    return Alternative(name="torchrun + checkpoints", goodput=goodput, assumed=assumed)


def _standby(inputs: Inputs, ours: Outlook, down_s: float) -> Alternative:
    faults, planned = _rates(ours)
    redone = faults * 1.5 * inputs.step_s
    goodput = (1 - ours.short.share) * max(0.0, 1 - redone) * math.exp(-(faults + planned) * down_s)
    system = "TrainMover, ~20 s on 1,024 GPUs" if down_s < 60 else "FlashRecovery, 150 s on 4,800 devices"
    assumed = (
        f"{down_s:g} s per interruption as published ({system}; HyperPod and TorchPass: under 2 minutes), one and a "
        "half steps redone, nothing for keeping copies (NVRx with a copy in every step was measured at 2.08 times the "
        "step time); same spares"
    )
    return Alternative(name=f"warm standby, {down_s:g} s", goodput=goodput, assumed=assumed)


def _rates(ours: Outlook) -> tuple[float, float]:
    """Returns the rates of faults and of planned interruptions, for the whole job."""
    named = [kind for kind in ours.kinds if not kind.loses_all]
    planned = sum(kind.per_s for kind in named if kind.name == PLANNED)
    return sum(kind.per_s for kind in named) - planned, planned
