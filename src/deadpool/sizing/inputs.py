"""What `deadpool plan` is told: each input once, with its default, its meaning and what is accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from deadpool.errors import ConfigError

GB = 1e9


def given(default: float | int, unit: str, meaning: str, *, least: float = 0.0, most: float = math.inf) -> Any:
    """A number that a user may give. `least` and `most` are accepted."""
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "least": least, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    nodes: int = given(16, "nodes", "that train", least=1, most=1_000_000)
    ranks_per_node: int = given(8, "ranks", "on each node", least=1, most=1024)
    days: float = given(54.0, "days", "that the job lasts", least=0.01, most=3650)
    mtbf_h: float = given(
        6335.0, "hours", "between unexpected interruptions of one node; inf: none (default: Llama 3)", least=1e-3
    )
    repair_h: float = given(12.0, "hours", "that a node with broken hardware is away, mean", most=10_000)
    reset_h: float = given(0.25, "hours", "that a node is away for a reset or reboot, mean", most=10_000)
    rack_repair_h: float = given(1.0, "hours", "that a rack or its switch is away, mean", most=10_000)
    maintenance_h: float = given(1.0, "hours", "that a drained node is away, mean", most=10_000)
    nodes_per_rack: int = given(8, "nodes", "that share a rack or a switch; 0: none do", most=1_000_000)
    rack_mtbf_h: float = given(
        0.0, "hours", "between losses of one rack; inf: never; 0: a tenth of the network faults of the mix"
    )
    state_gb: float = given(4.0, "GB", "of state that only this rank has", most=1e5)
    step_s: float = given(5.0, "s", "per step, without protection", least=1e-3, most=1e6)
    build_s: float = given(30.0, "s", "until a fresh process of your script is in its training loop", most=1e5)
    network_gb_s: float = given(25.0, "GB/s", "that one node can send beside training", least=1e-3)
    pcie_gb_s: float = given(50.0, "GB/s", "from one device to host memory", least=1e-3)
    host_memory_gb: float = given(1000.0, "GB", "of host memory per node that DeadPool may take", least=1e-3)
    slots: int = given(3, "slots", "per rank and copy (--slots)", least=2, most=64)
    store_gb_s: float = given(0.0, "GB/s", "of the durable store, all nodes together; 0: 0.5 per node")
    price: float = given(25.0, "per hour", "and node, in your currency")
    wait_h: float = given(24.0, "hours", "that the job waits for a spare (--spare-wait-s)", least=0.01, most=10_000)

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each.name, getattr(self, each.name), each.metadata)
        if 0 < self.rack_mtbf_h < 1e-3:
            _refuse("rack_mtbf_h", self.rack_mtbf_h, "give 0, inf, or at least 0.001 hours")

    @property
    def store_bytes_s(self) -> float:
        return GB * (self.store_gb_s or 0.5 * self.nodes)

    @property
    def seconds(self) -> float:
        return 86400.0 * self.days

    @property
    def racks(self) -> int:
        return math.ceil(self.nodes / self.nodes_per_rack) if self.nodes_per_rack else self.nodes


def _check(name: str, value: float, about: Any) -> None:
    least, most, unit = about["least"], about["most"], about["unit"]
    endless = name in ("mtbf_h", "rack_mtbf_h")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        _refuse(name, value, f"give a number of {unit}")
    if math.isinf(value) and not (endless and value > 0):
        _refuse(name, value, f"give a finite number of {unit}")
    if value < least:
        _refuse(name, value, f"give at least {least:g} {unit}")
    if value > most and not math.isinf(value):
        _refuse(name, value, f"give at most {most:g} {unit}")


def _refuse(name: str, value: object, accepted: str) -> None:
    raise ConfigError(f"{name}={value!r} cannot be used: {accepted}")
