"""What `deadpool plan` is told, and how long the parts of a recovery take.

`Inputs`: what `deadpool plan` is told: each input once, with its default, its meaning and what is accepted.

`Phases`: how long the parts of a recovery take: measured in jobs that ran, or what was measured for
docs/benchmarks.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any

from deadpool.errors import ConfigError
from deadpool.events.story import Record, Recovery, recoveries
from deadpool.views.metrics.folds import kind_of

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
    silent_errors: float = given(
        0.0068, "per 1,000 device-days", "of computing something wrong without a word (default: Llama 3)", most=1e6
    )
    silent_repeats: float = given(
        0.5, "share", "of silent errors that come again and again on their device; the others come once", most=1.0
    )
    audit_s: float = given(
        0.0, "s", "that an audit takes beside its step; 0: a recovery in which nothing was lost", most=1e5
    )

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The phases of a recovery in seconds. What depends on the size of the state, or on the script, is not in here."""

    detect_process_s: float = 0.21  # the kernel frees the memory of a killed process first
    detect_node_s: float = 5.0  # a node without power says nothing: the node timeout
    unwind_s: float = 0.33
    plan_s: float = 0.5  # with thousands of nodes
    prepare_s: float = 0.18  # besides building and loading
    connect_s: float = 3.5
    source: str = (
        "worst medians of docs/benchmarks.md: detection 0.21 s and preparation 0.18 s in DDP, unwinding 0.33 s in TP "
        "on a GPU, connecting 3.42 s with 64 NCCL channels; a node that dies is silent for the node timeout of 5 s"
    )


def measured(jobs: Iterable[tuple[str, list[Record]]]) -> Phases:
    """Measures the phases from the events of jobs that recovered. It takes means, because goodput follows from sums;
    what was not seen keeps its default."""
    jobs = list(jobs)
    name = ", ".join(each for each, _ in jobs)
    found = [each for _, records in jobs for each in recoveries(records) if each.phases_s]
    if not found:
        raise ConfigError(
            f"measured={name!r} cannot be used: there is no completed recovery in it; give the events.jsonl of a job "
            "that lost something, e.g. one of `deadpool lab chaos` or `benchmarks/recovery.py`"
        )
    default = Phases()
    return replace(
        means_of([each.phases_s for each in found], f"means of {len(found)} recoveries in {name}"),
        detect_process_s=_noticed_after(found, "trainer") or default.detect_process_s,
        detect_node_s=_noticed_after(found, "node") or default.detect_node_s,
    )


def means_of(found: Sequence[Mapping[str, float]], source: str) -> Phases:
    """Returns the means of the phases of some recoveries, without how long their faults went unnoticed."""
    mean = {part: max(0.0, fmean(each[part] for each in found)) for part in ("unwind", "plan", "prepare", "connect")}
    return Phases(
        unwind_s=mean["unwind"],
        plan_s=mean["plan"],
        prepare_s=mean["prepare"],
        connect_s=mean["connect"],
        source=source,
    )


def _noticed_after(found: list[Recovery], kind: str) -> float | None:
    """Returns when faults that were injected were noticed: of others it is not known when they happened."""
    seen = [each.phases_s["detect"] for each in found if kind_of(each.fault) == kind and each.phases_s["detect"] > 0]
    return fmean(seen) if seen else None
