"""The doctor for other parts of DeadPool, before they start a job. Safe in any process: it starts a child."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from deadpool.control.launch.examination import run_doctor
from deadpool.doctor.comparison import compare
from deadpool.doctor.finding import Finding, Report, unknown

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
