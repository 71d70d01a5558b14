"""The examination of one node: all checks that need no other node, side by side and within one deadline."""

from __future__ import annotations

import os
import socket
from functools import partial

from deadpool.doctor.clock import check_clock
from deadpool.doctor.finding import Facts, Finding, Report, unknown
from deadpool.doctor.folder import check_folder, check_secret
from deadpool.doctor.forked import Check, NoOutcome, run_all
from deadpool.doctor.gpus import check_gpus
from deadpool.doctor.memory import check_limits, check_memory, check_shared_memory
from deadpool.doctor.options import Options
from deadpool.doctor.time_limit import check_time_limit
from deadpool.doctor.versions import check_import, check_versions

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
