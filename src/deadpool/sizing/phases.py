"""How long the parts of a recovery take: measured in jobs that ran, or what was measured for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from deadpool.errors import ConfigError
from deadpool.metrics.recovery_fold import kind_of
from deadpool.story import Record, recoveries


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """In seconds. What depends on the size of the state, or on the script, is not in here."""

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
    """From the events of jobs that recovered. Medians; what was not seen keeps its default."""
    jobs = list(jobs)
    name = ", ".join(each for each, _ in jobs)
    found = [each for _, records in jobs for each in recoveries(records) if each.phases_s]
    if not found:
        raise ConfigError(
            f"measured={name!r} cannot be used: there is no completed recovery in it; give the events.jsonl of a job "
            "that lost something, e.g. one of `deadpool chaos` or `benchmarks/recovery.py`"
        )
    faults = [each for each in found if kind_of(each.fault) != "drain"]
    by_kind = {kind: [r.phases_s["detect"] for r in faults if kind_of(r.fault) == kind] for kind in ("node", "trainer")}
    phases = Phases(source=f"medians of {len(found)} recoveries in {name}")
    if by_kind["node"]:
        phases = replace(phases, detect_node_s=median(by_kind["node"]))
    if by_kind["trainer"]:
        phases = replace(phases, detect_process_s=median(by_kind["trainer"]))
    medians = {
        part: max(0.0, median(r.phases_s[part] for r in found)) for part in ("unwind", "plan", "prepare", "connect")
    }
    return replace(
        phases,
        unwind_s=medians["unwind"],
        plan_s=medians["plan"],
        prepare_s=medians["prepare"],
        connect_s=medians["connect"],
    )
