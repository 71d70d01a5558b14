"""Every process of a job x signal x phase: how the job ends, and that nothing is left. docs/faults.md says the same.

A job that ends with 0 has done all its steps, whatever was ended. `Ctrl-C` is SIGINT to the launcher's process group,
as a terminal sends it; the second one comes while the launcher waits for its processes. `all` is every process at once,
as systemd and Slurm do it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command import alive
from ending_job import PHASES, EndingJob, is_alive
from waiting import LIMIT_S, wait_until

ENDS = """
                                launching  loading  training  recovering  ending
launcher            Ctrl-C            130      130       130         130     130
launcher            Ctrl-C-twice      130      130       130         130     130
launcher            SIGTERM           130      130       130         130     130
launcher            SIGHUP            130      130       130         130     130
launcher            SIGQUIT            -3       -3        -3          -3      -3
launcher            SIGKILL            -9       -9        -9          -9      -9
launcher            SIGTSTP             0        0         0           0       0
launcher            SIGSTOP             0        0         0           0       0
all                 SIGTERM           130      130       130         130     130
coordinator         SIGTERM             1        1         1           1       1
coordinator         SIGINT              1        1         1           1       1
coordinator         SIGHUP              0        0         0           0       0
coordinator         SIGQUIT             0        0         0           0       0
coordinator         SIGKILL             0        0         0           0       0
standby             SIGTERM             0        0         0           0       0
standby             SIGINT              0        0         0           0       0
standby             SIGHUP              0        0         0           0       0
standby             SIGQUIT             0        0         0           0       0
standby             SIGKILL             0        0         0           0       0
agent               SIGTERM             1        0         0           0       0
agent               SIGINT              1        0         0           0       1
agent               SIGHUP              1        0         0           0       1
agent               SIGQUIT             1        0         0           0       1
agent               SIGKILL             1        0         0           0       1
fork-server         SIGTERM             0        0         0           0       0
fork-server         SIGINT              0        0         0           0       0
fork-server         SIGHUP              0        0         0           0       0
fork-server         SIGQUIT             0        0         0           0       0
fork-server         SIGKILL             0        0         0           0       0
node's-fork-server  SIGTERM             .        0         0           0       1
node's-fork-server  SIGINT              .        0         0           0       0
node's-fork-server  SIGHUP              .        0         0           0       1
node's-fork-server  SIGQUIT             .        0         0           0       1
node's-fork-server  SIGKILL             .        0         0           0       1
trainer             SIGTERM             .        0         0           0       1
trainer             SIGINT              .        1         0           0       1
trainer             SIGHUP              .        0         0           0       1
trainer             SIGQUIT             .        0         0           0       1
trainer             SIGKILL             .        0         0           0       1
"""
"""A dot: while a job is launched, no node has a fork server or trainers yet."""
SURVIVED = {"agent": ("SIGTERM",), "fork-server": ("SIGINT",), "node's-fork-server": ("SIGINT",)}
"""A request to be drained; what is for others."""
STOPS = ("SIGTSTP", "SIGSTOP")
"""The launcher has nothing to do while a job runs: that goes on, and ends when the launcher may go on (`fg`)."""
BEFORE_OUR_FIRST_LINE = ("agent", "SIGINT", "launching")
"""Python itself may print a traceback of it: it may not have come to our code."""
SAMPLE = {
    "launcher Ctrl-C launching",
    "launcher SIGKILL launching",
    "launcher SIGTERM recovering",
    "coordinator SIGKILL training",
}


def cells() -> list[object]:
    found = []
    for line in filter(None, ENDS.splitlines()[2:]):
        process, sent, *codes = line.split()
        for phase, code in zip(PHASES, codes, strict=True):
            marks = [] if f"{process} {sent} {phase}" in SAMPLE else [pytest.mark.thorough]
            if code != ".":
                found.append(pytest.param(process, sent, phase, int(code), id=f"{process}-{sent}-{phase}", marks=marks))
    return found


@pytest.mark.parametrize(("process", "sent", "phase", "code"), cells())
def test_process_is_ended(
    tmp_path: Path, record_property: Callable[[str, object], None], process: str, sent: str, phase: str, code: int
) -> None:
    """How long it takes is recorded, for benchmarks/endings.py, and not judged."""
    job = EndingJob(tmp_path, phase, process)
    with job.started() as launcher:
        job.reach()
        ends_with_it = job.ends_with(process) if sent not in SURVIVED.get(process, ()) else []
        sent_at = time.monotonic()
        send(job, process, sent)
        wait_until(lambda: not any(map(is_alive, ends_with_it)), f"the end of {ends_with_it}")
        job.go_on()
        if sent in STOPS:
            let_go_on(job)
        assert launcher.wait(LIMIT_S) == code, job.console()
        wait_until(lambda: not job.left(), lambda: f"the end of {job.left()}")
        record_property("seconds", round(time.monotonic() - sent_at, 1))
    assert code != 0 or job.has_done_all_steps()
    own = [line for line in job.console().splitlines() if line.startswith(("Traceback", "Exception"))]
    assert not own or (process, sent, phase) == BEFORE_OUR_FIRST_LINE, (
        job.console()
    )  # lines of trainers begin with the names of their nodes


def send(job: EndingJob, process: str, sent: str) -> None:
    match process, sent:
        case "launcher", "Ctrl-C":
            os.killpg(job.launcher.pid, signal.SIGINT)
        case "launcher", "Ctrl-C-twice":
            interrupt_twice(job)
        case "all", _:
            for pid in [job.launcher.pid, *(each.pid for each in job.launcher.children(recursive=True))]:
                os.kill(pid, signal.Signals[sent])
        case _:
            job.find(process).send_signal(signal.Signals[sent])


def interrupt_twice(job: EndingJob) -> None:
    """The coordinator is stopped, so that the launcher waits for it, and does not see what a living one would obey."""
    coordinator = job.find("coordinator")
    coordinator.suspend()
    wait_until(lambda: coordinator.status() == psutil.STATUS_STOPPED, "a coordinator that is stopped")
    os.killpg(job.launcher.pid, signal.SIGINT)
    wait_until(lambda: has_pending(coordinator.pid, signal.SIGTERM), "a launcher that waits for its coordinator")
    os.killpg(job.launcher.pid, signal.SIGINT)


def let_go_on(job: EndingJob) -> None:
    """All steps are done meanwhile, unless the launcher was stopped before it had started all processes."""
    wait_until(lambda: job.launcher.status() == psutil.STATUS_STOPPED, "a launcher that is stopped")
    if job.phase != "launching":
        wait_until(job.has_done_all_steps, "the steps of a job whose launcher is stopped")
    job.launcher.send_signal(signal.SIGCONT)


def has_pending(pid: int, sig: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (sig - 1) & 1 for mask in masks)


@pytest.mark.thorough
def test_every_process_that_is_ended_here_is_one_of_the_job_s(tmp_path: Path) -> None:
    """Otherwise a cell of the table could be empty: nothing would be ended, and the job would complete."""
    job = EndingJob(tmp_path, "training", "standby")
    with job.started() as launcher:
        job.reach()
        names = ["launcher", "coordinator", "standby", "agent", "fork-server", "node's-fork-server", "trainer"]
        found = [job.find(name).pid for name in names]
        assert len(set(found)) == len(names)
        launcher.terminate()
        assert launcher.wait(LIMIT_S) == 130
        wait_until(lambda: not alive(), "the end of every process")
