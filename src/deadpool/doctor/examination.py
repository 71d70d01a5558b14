"""The examination of one node: all checks that need no other node, side by side and within one deadline.

`Options` says what an examination is told: what the job will need, and where it will write. `preflight` and `compared`
are the doctor for other parts of DeadPool, before they start a job. They are safe in any process: they start a child.

Each check runs in a process of its own, which is given up if it does not end. A stale NFS mount or a sick GPU can stop
a process in the kernel, where no signal reaches it. So the caller never waits for a child without a deadline, and a
child has none of the caller's descriptors: whoever reads the output of the doctor is not kept waiting by it either.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deadpool.control.launch.examination import run_doctor
from deadpool.doctor.clock import check_clock, check_import, check_time_limit, check_versions, compare
from deadpool.doctor.finding import Facts, Finding, NodeReport, unknown
from deadpool.doctor.machine import (
    check_folder,
    check_gpus,
    check_limits,
    check_memory,
    check_secret,
    check_shared_memory,
)
from deadpool.errors import ConfigError

_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)

Check = Callable[[], tuple[Facts, list[Finding]]]

_CHUNK_BYTES = 1 << 16


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


def examine(options: Options, node: str | None = None) -> NodeReport:
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
    return NodeReport(node=name, facts=facts, findings=tuple(each.at(name) for each in findings))


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
) -> NodeReport:
    """Examines this machine for a job that is about to start here. `exit_code(report.findings)` says whether to start
    it. It takes well under 2 s where nothing hangs, and never much longer than `timeout_s`."""
    words = [f"--run-dir={run_dir}"] if run_dir is not None else []
    words += [f"--arena={arena_bytes}"] if arena_bytes else []
    words += [f"--gpus={gpus}"] if gpus is not None else []
    words += [f"--end-time={end_time}"] if end_time is not None else []
    told = run_doctor(words, timeout_s=timeout_s)
    if "error" in told:
        return NodeReport(node="", findings=(unknown("doctor", f"the examination failed: {told['error']}", _AGAIN),))
    return NodeReport.from_json(told["nodes"][0])


def compared(printed: Iterable[tuple[str, str]]) -> list[Finding]:
    """All findings of several machines: for each its name, and what `deadpool doctor --json` printed there."""
    reports, findings = [], []
    for node, text in printed:
        try:
            report = NodeReport.from_json(json.loads(text)["nodes"][0])
        except (ValueError, KeyError, TypeError, IndexError):
            last = (text.strip().splitlines() or ["nothing"])[-1]
            findings.append(unknown("doctor", f"it printed no report: {last[:200]}", _AGAIN + " there").at(node))
            continue
        reports.append(NodeReport(node=node, facts=report.facts, findings=report.findings))
    return [*findings, *(each.at(report.node) for report in reports for each in report.findings), *compare(reports)]


@dataclass(frozen=True, slots=True)
class NoOutcome:
    reason: str
    hangs: bool = False  # it did not end in time


Outcome = tuple[Facts, list[Finding]] | NoOutcome


@dataclass(slots=True)
class _Child:
    pid: int
    descriptor: int
    data: bytearray


def run_all(checks: Mapping[str, Check], timeout_s: float) -> dict[str, Outcome]:
    """Call it in a process with one thread: a fork copies that one only."""
    children = {name: _start(check) for name, check in checks.items()}
    deadline = time.monotonic() + timeout_s
    ended = _collect(children, deadline)
    return {name: _outcome(child, name in ended, timeout_s) for name, child in children.items()}


def _start(check: Check) -> _Child:
    near, far = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(check, far)
    os.close(far)
    return _Child(pid, near, bytearray())


def _be_child(check: Check, far: int) -> None:
    try:
        os.setpgid(0, 0)  # what it starts ends with it
        os.dup2(far, 3)
        os.closerange(4, 1 << 16)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        try:
            facts, findings = check()
            answer = {"facts": facts, "findings": [each.to_json() for each in findings]}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        data = json.dumps(answer).encode()
        while data:
            data = data[os.write(3, data) :]
    finally:
        os._exit(0)


def _collect(children: Mapping[str, _Child], deadline: float) -> set[str]:
    """The names of those that ended in time."""
    poller = select.poll()
    waiting = {child.descriptor: name for name, child in children.items()}
    for descriptor in waiting:
        poller.register(descriptor, select.POLLIN)
    ended = set()
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(1e3 * left_s):
            name = waiting[descriptor]
            if data := os.read(descriptor, _CHUNK_BYTES):
                children[name].data += data
            else:
                poller.unregister(descriptor)
                del waiting[descriptor]
                ended.add(name)
    return ended


def _outcome(child: _Child, ended: bool, timeout_s: float) -> Outcome:
    os.close(child.descriptor)
    if not ended:
        _give_up(child.pid)
        return NoOutcome(f"it did not end within {timeout_s:g} s", hangs=True)
    os.waitpid(child.pid, 0)
    try:
        answer = json.loads(child.data)
    except ValueError:
        return NoOutcome("its process died")
    if "error" in answer:
        return NoOutcome(str(answer["error"]))
    return answer["facts"], [Finding.from_json(each) for each in answer["findings"]]


def _give_up(pid: int) -> None:
    """A process that is stopped in the kernel stays until the kernel lets it go; init reaps it then."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)  # it has not left our group yet
    deadline = time.monotonic() + 0.1
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
