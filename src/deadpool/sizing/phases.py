"""How long the parts of a recovery take: measured in jobs that ran, or what was measured for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from deadpool.errors import ConfigError
from deadpool.events.story import Record, Recovery, recoveries
from deadpool.views.metrics.recovery_fold import kind_of


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
