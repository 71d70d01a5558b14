"""The examination of one node.

`Options`: what an examination is told: what the job will need, and where it will write.

`examine`: the examination of one node: all checks that need no other node, side by side and within one deadline.

`preflight` and `compared`: the doctor for other parts of DeadPool, before they start a job. Safe in any process: it
starts a child.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deadpool.control.launch.examination import run_doctor
from deadpool.doctor.clock import check_clock, check_import, check_time_limit, check_versions, compare
from deadpool.doctor.finding import Facts, Finding, Report, unknown
from deadpool.doctor.forked import Check, NoOutcome, run_all
from deadpool.doctor.gpus import check_gpus
from deadpool.doctor.memory import check_folder, check_limits, check_memory, check_secret, check_shared_memory
from deadpool.errors import ConfigError

_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    run_dir: Path | None = None
    arena_bytes: int = 0  # that this node will have to hold
    gpus: int | None = None  # that this node must have; None: as many as it has
    rdma: bool = False  # the job uses InfiniBand or RoCE, whether or not a device is seen
    end_time: float | None = None  # when the allocation ends, in seconds since 1970
    least_time_s: float = 600.0
    import_torch: bool = False
    timeout_s: float = 5.0


def parse_size(text: str, name: str) -> int:
    """Reads a size such as 63GB, 1.5GiB or 4096."""
    if (match := _SIZE.fullmatch(text)) is None:
        raise ConfigError(f"{name}={text!r} cannot be used: give a size as in 63GB, 1.5GiB or 4096")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


_HANGS = {
    "run folder": "look at its file server: a write there does not come back",
    "gpu": "restart the node: its driver does not answer (nvidia-smi will hang as well)",
}
"""Checks that do not end where something is broken, and what to do."""


def examine(options: Options, node: str | None = None) -> Report:
    """Call it in a process with one thread: it forks."""
    outcomes = run_all(_checks(options), options.timeout_s)
    facts: Facts = {"host": socket.gethostname(), "user": os.getuid()}
    findings: list[Finding] = []
    for name, outcome in outcomes.items():
        if isinstance(outcome, NoOutcome):
            findings.append(_failed(name, outcome))
        else:
            facts |= outcome[0]
            findings += outcome[1]
    name = node or socket.gethostname()
    return Report(node=name, facts=facts, findings=tuple(each.at(name) for each in findings))


def _checks(options: Options) -> dict[str, Check]:
    checks: dict[str, Check] = {
        "versions": check_versions,
        "memory": partial(check_memory, options.arena_bytes),
        "shared memory": check_shared_memory,
        "limits": partial(check_limits, options.rdma),
        "gpu": partial(check_gpus, options.gpus),
        "clock": check_clock,
        "secret": check_secret,
        "time limit": partial(check_time_limit, options.end_time, options.least_time_s),
    }
    if options.run_dir is not None:
        checks["run folder"] = partial(check_folder, options.run_dir)
    if options.import_torch:
        checks["import"] = check_import
    return checks


def _failed(name: str, outcome: NoOutcome) -> Finding:
    if name in _HANGS and outcome.hangs:
        return Finding(check=name, what=f"the check of the {name} hangs: {outcome.reason}", do=_HANGS[name])
    return unknown(name, f"the check failed: {outcome.reason}", "run deadpool doctor again; report it if it stays so")


_AGAIN = "run deadpool doctor by itself"


def preflight(
    *,
    run_dir: Path | None = None,
    arena_bytes: int = 0,
    gpus: int | None = None,
    end_time: float | None = None,
    timeout_s: float = 5.0,
) -> Report:
    """Examines this machine for a job that is about to start here. `exit_code(report.findings)` says whether to start
    it. It takes well under 2 s where nothing hangs, and never much longer than `timeout_s`."""
    words = [f"--run-dir={run_dir}"] if run_dir is not None else []
    words += [f"--arena={arena_bytes}"] if arena_bytes else []
    words += [f"--gpus={gpus}"] if gpus is not None else []
    words += [f"--end-time={end_time}"] if end_time is not None else []
    told = run_doctor(words, timeout_s=timeout_s)
    if "error" in told:
        return Report(node="", findings=(unknown("doctor", f"the examination failed: {told['error']}", _AGAIN),))
    return Report.from_json(told["nodes"][0])


def compared(printed: Iterable[tuple[str, str]]) -> list[Finding]:
    """All findings of several machines: for each its name, and what `deadpool doctor --json` printed there."""
    reports, findings = [], []
    for node, text in printed:
        try:
            report = Report.from_json(json.loads(text)["nodes"][0])
        except (ValueError, KeyError, TypeError, IndexError):
            last = (text.strip().splitlines() or ["nothing"])[-1]
            findings.append(unknown("doctor", f"it printed no report: {last[:200]}", _AGAIN + " there").at(node))
            continue
        reports.append(Report(node=node, facts=report.facts, findings=report.findings))
    return [*findings, *(each.at(report.node) for report in reports for each in report.findings), *compare(reports)]
