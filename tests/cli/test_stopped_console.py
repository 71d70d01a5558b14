"""A console that takes no lines, as a terminal after Ctrl-S or a pager that nobody scrolls: the job does not wait."""

from __future__ import annotations

import os
import signal
import subprocess
import termios
from pathlib import Path

import pytest
from command import COMMAND
from talking_script import LINE, STEPS
from terminal import terminal
from waiting import LIMIT_S, wait_until

SCRIPT = Path(__file__).with_name("talking_script.py")


def words(folder: Path) -> list[str]:
    return [*COMMAND, "run", "--nodes=1", f"--run-dir={folder / 'run'}", str(SCRIPT), str(folder / "done")]


@pytest.mark.thorough
def test_pipe_that_nobody_reads(tmp_path: Path) -> None:
    job = subprocess.Popen(words(tmp_path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        wait_until((tmp_path / "done").exists, "the last step of a job whose output nobody reads")
        said, _ = job.communicate(timeout=LIMIT_S)
    finally:
        job.kill()
    assert job.returncode == 0
    # Lines of two processes may mix in a pipe: these are longer than what it takes at once.
    assert said.count(b"~") == 10 * STEPS * len(LINE), "everything is said once somebody reads"
    assert b"completed" in said


@pytest.mark.thorough
def test_terminal_that_stops_whoever_writes_from_the_background(tmp_path: Path) -> None:
    """As `stty tostop` has it. Coordinator and agents are in process groups of their own."""
    with terminal() as own:
        attributes = termios.tcgetattr(own.theirs)
        attributes[3] |= termios.TOSTOP
        termios.tcsetattr(own.theirs, termios.TCSANOW, attributes)
        job = subprocess.Popen(words(tmp_path), stdout=own.theirs, stderr=own.theirs, **own.of_a_process())
        os.set_blocking(own.ours, False)
        try:
            wait_until(lambda: read_some(own.ours) and (tmp_path / "done").exists(), "the last step")
            wait_until(lambda: read_some(own.ours) and job.poll() is not None, "the end of the job")
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait()
    assert job.returncode == 0


def read_some(descriptor: int) -> bool:
    try:
        while os.read(descriptor, 1 << 16):
            pass
    except (BlockingIOError, OSError):
        pass
    return True
