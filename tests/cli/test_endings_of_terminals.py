"""The terminal of a job closes, or its shell is killed: everything ends. With nohup or setsid the job goes on.

The end of an ssh connection with a terminal (`ssh -t`) is the first of these: sshd closes it. `deadpool ssh` has tests
of its own (tests/clusters/test_ssh.py).
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import psutil
import pytest
from command import COMMAND
from ending_job import PHASES, EndingJob
from terminal import Terminal, terminal
from waiting import LIMIT_S, wait_until

THOROUGH = [pytest.param(phase, marks=pytest.mark.thorough) for phase in PHASES[1:]]


@pytest.mark.parametrize("phase", [PHASES[0], *THOROUGH])
def test_terminal_is_closed(tmp_path: Path, phase: str) -> None:
    job = EndingJob(tmp_path, phase)
    with terminal() as closed, job.started(**closed.of_a_process()) as launcher:
        job.reach()
        closed.close()
        assert launcher.wait(LIMIT_S) == 130, job.console()
        wait_until(lambda: not job.left(), lambda: f"the end of {job.left()}")
    assert "Traceback" not in job.console()


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=pytest.mark.thorough) for phase in ("launching", "training")]
)
def test_shell_of_a_terminal_is_killed(tmp_path: Path, phase: str) -> None:
    """The kernel sends SIGHUP to what runs in the foreground. The launcher becomes a child of this process then."""
    job = EndingJob(tmp_path, phase)
    with terminal() as kept, shell(job, kept) as bash:
        launcher = wait_until(lambda: next(iter(psutil.Process(bash.pid).children()), None), "the launcher")
        job.launcher = launcher
        job.reach()
        bash.kill()
        bash.wait()
        assert launcher.wait(LIMIT_S) == 130, job.console()
        wait_until(lambda: not job.left(), lambda: f"the end of {job.left()}")
    assert "interrupted: all processes of the job are ended" in job.console()


def shell(job: EndingJob, its: Terminal) -> subprocess.Popen[bytes]:
    """An interactive one, which gives each command a process group of its own."""
    bash = subprocess.Popen(
        ["bash", "--norc", "-i"], stdout=its.theirs, stderr=its.theirs, env=job.environment, **its.of_a_process()
    )
    its.type(f"{shlex.join(job.words)} > {shlex.quote(str(job.folder / 'console'))} 2>&1")
    return bash


@pytest.mark.thorough
@pytest.mark.parametrize("command", [["nohup"], ["setsid", "--wait"]], ids=lambda words: words[0])
def test_job_goes_on_without_its_terminal(tmp_path: Path, command: list[str]) -> None:
    job = EndingJob(tmp_path, "training")
    with terminal() as closed, job.started(*command, **closed.of_a_process()) as outer:
        job.launcher = wait_until(lambda: launcher_of(outer.pid), "the launcher")
        job.reach()
        closed.close()
        if outer.pid != job.launcher.pid:
            outer.wait(LIMIT_S)  # it stayed in the terminal's session, and the launcher is a child of this process now
        job.go_on()
        assert job.launcher.wait(LIMIT_S) == 0, job.console()
        wait_until(lambda: not job.left(), lambda: f"the end of {job.left()}")
    assert job.has_done_all_steps()


def launcher_of(pid: int) -> psutil.Process | None:
    """It is the process itself, where `nohup` has become it, or a child of it."""
    outer = psutil.Process(pid)
    family = [outer, *outer.children()]
    return next((each for each in family if each.cmdline()[: len(COMMAND)] == COMMAND), None)
