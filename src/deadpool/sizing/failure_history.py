"""Which interruptions there are, by a mix or by what has happened.

`InterruptionRate`: which interruptions there are. The default mix is that of Llama 3's 405B run.

Source: "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.4 and table 5: 54 days on 16,384 GPUs (2,048
nodes of 8), 466 interruptions, of which 47 were planned and 419 were not. The counts are theirs. What follows from
each cause (whether the node is usable at once, after a reset, or after a repair) is not published: `AFTER` is our
assumption, and so is that a tenth of network faults takes a whole rack.

`FailureCounts`: rates from what has happened: a failure log (CSV or JSON lines), or the events of jobs, with their
uncertainty.

Failures are a Poisson process, its rate has a Gamma prior worth one failure at the rate of Llama 3. With n failures
in h node hours the estimate is (1 + n) / (6335 + h), and its interval that of a Gamma distribution with shape 1 + n.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from deadpool.errors import ConfigError
from deadpool.sizing.inputs import Inputs
from deadpool.views.metrics.folds import JobFold

LLAMA3_NODES, LLAMA3_DAYS, LLAMA3_PLANNED = 2048, 54, 47
LLAMA3 = {
    "faulty GPU": 148,
    "GPU HBM3 memory": 72,
    "software bug": 54,
    "network switch or cable": 35,
    "unplanned host maintenance": 32,
    "GPU SRAM memory": 19,
    "GPU system processor": 17,
    "NIC": 7,
    "NCCL watchdog timeout": 7,
    "silent data corruption": 6,
    "GPU thermal interface, sensor": 6,
    "SSD": 3,
    "power supply": 3,
    "server chassis": 2,
    "IO expansion board": 2,
    "dependency": 2,
    "CPU": 2,
    "system memory": 2,
}
PROCESS, RESET, REPAIR, RACK, PLANNED = "process", "reset", "repair", "rack", "planned"
AFTER = {
    "software bug": PROCESS,
    "NCCL watchdog timeout": PROCESS,
    "dependency": PROCESS,
    "GPU HBM3 memory": RESET,
    "GPU SRAM memory": RESET,
    "GPU system processor": RESET,
}
"""All others: repair."""
RACK_SHARES = {"network switch or cable": 0.1}
"""The share of these causes that is the switch, and with it all nodes of a rack."""
_UNEXPECTED = sum(LLAMA3.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptionRate:
    """One kind of them. `per_s` is the rate of one node; for racks, of one rack."""

    name: str
    kind: str  # process, reset, repair, rack, planned
    per_s: float
    away_s: float

    @property
    def takes_node(self) -> bool:
        return self.kind in (RESET, REPAIR)


def shares() -> dict[str, float]:
    """Returns the shares of the unexpected interruptions, by kind."""
    found = dict.fromkeys((PROCESS, RESET, REPAIR, RACK), 0.0)
    for name, count in LLAMA3.items():
        rack = RACK_SHARES.get(name, 0.0) * count
        found[AFTER.get(name, REPAIR)] += (count - rack) / _UNEXPECTED
        found[RACK] += rack / _UNEXPECTED
    return found


def mix(inputs: Inputs, shares_by_kind: dict[str, float] | None = None) -> tuple[InterruptionRate, ...]:
    """The interruptions of this cluster: its rate, and how it divides among kinds."""
    parts, per_s = shares_by_kind or shares(), 1.0 / (3600.0 * inputs.mtbf_h)
    away_h = {PROCESS: 0.0, RESET: inputs.reset_h, REPAIR: inputs.repair_h, RACK: inputs.rack_repair_h}
    found = [
        InterruptionRate(name=kind, kind=kind, per_s=per_s * parts.get(kind, 0.0), away_s=3600.0 * away_h[kind])
        for kind in (PROCESS, RESET, REPAIR)
    ]
    found.append(_racks(inputs, per_s * parts.get(RACK, 0.0)))
    planned = per_s * LLAMA3_PLANNED / _UNEXPECTED
    found.append(InterruptionRate(name=PLANNED, kind=PLANNED, per_s=planned, away_s=3600.0 * inputs.maintenance_h))
    return tuple(found)


def _racks(inputs: Inputs, per_node_s: float) -> InterruptionRate:
    rack = InterruptionRate(name=RACK, kind=RACK, per_s=0.0, away_s=3600.0 * inputs.rack_repair_h)
    if not inputs.nodes_per_rack:
        return rack
    if inputs.rack_mtbf_h:
        return replace(rack, per_s=0.0 if math.isinf(inputs.rack_mtbf_h) else 1.0 / (3600.0 * inputs.rack_mtbf_h))
    return replace(rack, per_s=per_node_s * inputs.nodes_per_rack)


PRIOR_FAILURES, PRIOR_HOURS = 1.0, 6335.0
KINDS = (PROCESS, RESET, REPAIR, RACK, PLANNED)
_OF_FAULT = {"trainer": PROCESS, "hang": PROCESS, "drain": PLANNED}
Z90 = 1.645


@dataclass(slots=True)
class FailureCounts:
    """What was seen: how many failures of each kind, in how many node hours."""

    node_hours: float
    failures: Counter[str] = field(default_factory=Counter)  # by kind; "node": it was lost, for how long is not known
    nodes: int | None = None
    step_s: float | None = None
    source: str = ""

    def count(self, faults: Counter[str]) -> None:
        """Faults of a job, by what was lost. That its protection was changed was no failure."""
        for kind, count in faults.items():
            if kind != "protection":
                self.failures[_OF_FAULT.get(kind, "node")] += count

    @property
    def unexpected(self) -> int:
        return sum(count for kind, count in self.failures.items() if kind != PLANNED)

    @property
    def mtbf_h(self) -> float:
        return (PRIOR_HOURS + self.node_hours) / (PRIOR_FAILURES + self.unexpected)

    @property
    def interval_h(self) -> tuple[float, float]:
        """Between which the mean time between failures lies, with a probability of nine in ten."""
        shape, hours = PRIOR_FAILURES + self.unexpected, PRIOR_HOURS + self.node_hours
        return hours / _gamma_quantile(shape, Z90), hours / _gamma_quantile(shape, -Z90)

    def shares(self) -> dict[str, float]:
        """Returns the shares of the unexpected failures, by kind: counted, with the published mix as a prior worth ten
        failures.
        """
        prior, weight = shares(), 10.0
        known = {kind: float(self.failures[kind]) for kind in prior}
        away = prior[RESET] + prior[REPAIR]
        for kind in (RESET, REPAIR):
            known[kind] += self.failures["node"] * prior[kind] / away
        total = weight + sum(known.values())
        return {kind: (known[kind] + weight * prior[kind]) / total for kind in prior}


def _gamma_quantile(shape: float, z: float) -> float:
    """Returns the quantile of a Gamma distribution with this shape and rate 1, where a normal one has z (Wilson and
    Hilferty).
    """
    return float(shape * max(1e-9, 1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3)


# --- a failure log ----------------------------------------------------------------------------------------------------


def read_log(path: Path, inputs: Inputs, days: float | None) -> FailureCounts:
    """One failure per line. CSV with a header, or JSON lines; fields `time` and, if known, `kind`."""
    text = _text(path)
    rows = _json_rows(path, text) if text.lstrip().startswith("{") else list(csv.DictReader(text.splitlines()))
    times = [_time(path, number, row) for number, row in enumerate(rows, 1)]
    if days is None and len(times) < 2:
        raise ConfigError(f"failure_log={str(path)!r} cannot be used: with fewer than two failures give log_days too")
    span_h = 24 * days if days is not None else (max(times) - min(times)) / 3600
    if span_h <= 0:
        raise ConfigError(f"log_days={days!r} cannot be used: give the days that the log covers, more than 0")
    kinds = Counter(_kind(path, number, row) for number, row in enumerate(rows, 1))
    return FailureCounts(
        span_h * inputs.nodes, kinds, source=f"{len(rows)} failures in {path.name}, {span_h / 24:.1f} days"
    )


def _text(path: Path) -> str:
    """Excel puts a mark before the first character of a CSV, which is no part of the name of its first column."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        reason = "there is no such file"
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError as error:
        reason = f"it is no text in UTF-8 ({error})"
    raise ConfigError(f"failure_log={str(path)!r} cannot be used: {reason}; give a CSV or JSON lines")


def _json_rows(path: Path, text: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else None
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"failure_log={str(path)!r} cannot be used: line {number} is not JSON ({error})"
            ) from None
        if row is not None and not isinstance(row, dict):
            raise ConfigError(f"failure_log={str(path)!r} cannot be used: line {number} is no object with a `time`")
        rows += [row] if row is not None else []
    return rows


def _time(path: Path, number: int, row: dict[str, Any]) -> float:
    value = row.get("time", row.get("t"))
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        raise ConfigError(
            f"failure_log={str(path)!r} cannot be used: time={value!r} of failure {number} is neither seconds nor a "
            "date such as 2026-11-17T09:30:00"
        ) from None


def _kind(path: Path, number: int, row: dict[str, Any]) -> str:
    kind = str(row.get("kind") or "node").strip().lower()
    if kind not in (*KINDS, "node"):
        raise ConfigError(
            f"failure_log={str(path)!r} cannot be used: kind={kind!r} of failure {number}; give one of "
            f"{', '.join(KINDS)}, or node where it is not known for how long it was away"
        )
    return kind


# --- the job's own events ---------------------------------------------------------------------------------------------


def from_events(jobs: Iterable[tuple[str, list[dict[str, Any]]]]) -> FailureCounts:
    """Reads the history of one or several jobs: their faults, nodes, hours and step time."""
    found = FailureCounts(0.0)
    names, steps, step_seconds = [], 0, 0.0
    for name, records in jobs:
        fold, seats = JobFold(), 0
        for record in records:
            fold.add(record)
            seats = max(seats, len(record.get("seats") or ())) if record["what"] == "planned" else seats
        if not seats or not fold.trained_s():
            raise ConfigError(f"events={name!r} cannot be used: no plan and no training in it; give a job that ran")
        found.node_hours += seats * fold.trained_s() / 3600
        found.nodes = max(found.nodes or 0, seats)
        found.count(fold.recoveries.faults)
        steps, step_seconds = steps + fold.step_times.count, step_seconds + fold.step_times.total
        names.append(name)
    found.step_s = step_seconds / steps if steps else None
    count = sum(found.failures.values())
    found.source = f"{count} interruptions in {found.node_hours:.1f} node hours of {', '.join(names)}"
    return found
