"""A terminal that is closed, and a run folder that another job uses: what `deadpool run` does then."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import socket
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import COMMAND, WAITING_SCRIPT, alive, deadpool, started
from waiting import LIMIT_S, wait_until


@contextlib.contextmanager
def in_terminal(*arguments: object, ignores: bool = False) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command in a terminal of its own, and the terminal's other end, which closes it. `ignores`: as nohup does."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if ignores:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    words = [*COMMAND, *map(str, arguments)]
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=take_terminal
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        with contextlib.suppress(OSError):
            os.close(ours)
        process.kill()
        process.wait()


@pytest.fixture
def ranks(tmp_path) -> Path:
    (tmp_path / "ranks").mkdir()
    return tmp_path / "ranks"


def test_everything_ends_with_the_terminal(tmp_path, ranks):
    with in_terminal("run", "--run-dir", tmp_path / "run", WAITING_SCRIPT, ranks) as (process, terminal):
        wait_until(lambda: any(ranks.iterdir()), "the script")
        os.close(terminal)
        assert process.wait(LIMIT_S) == 130
        wait_until(lambda: not alive(), "the end of every process")


@pytest.mark.thorough
def test_with_nohup_the_job_goes_on_without_its_terminal(tmp_path, ranks):
    run_dir = ["--run-dir", tmp_path / "run"]
    with in_terminal("run", *run_dir, "--nodes", 2, WAITING_SCRIPT, ranks, ignores=True) as (process, terminal):
        wait_until(lambda: len(list(ranks.iterdir())) == 2, "both ranks")
        os.close(terminal)
        deadpool("node", "kill", tmp_path / "run", "--rank", 1)  # everybody has something to print now
        wait_until(lambda: len(list(ranks.iterdir())) == 4, "a new start of both ranks")
        assert process.poll() is None
        process.terminate()
        assert process.wait(LIMIT_S) == 130
        wait_until(lambda: not alive(), "the end of every process")


@pytest.mark.thorough
def test_second_job_in_the_folder_is_refused_and_the_first_goes_on(tmp_path, ranks):
    run_dir = ["--run-dir", tmp_path / "run"]
    with started("run", *run_dir, WAITING_SCRIPT, ranks, output=tmp_path / "out") as first:
        wait_until(lambda: any(ranks.iterdir()), "the script")
        before = {name: (tmp_path / "run" / name).read_bytes() for name in ("secret", "job.json")}
        second = deadpool("run", *run_dir, WAITING_SCRIPT, ranks)
        assert second.returncode == 2 and "Traceback" not in second.stderr
        assert f"cannot be used: process {first.pid} of {socket.gethostname()} uses it" in second.stderr
        assert before == {name: (tmp_path / "run" / name).read_bytes() for name in before}
        assert deadpool("status", tmp_path / "run").returncode == 0
        first.kill()
        first.wait()
        wait_until(lambda: not alive(), "the end of every process")
    third = (tmp_path / "ends.py").write_text("print('over')") and deadpool("run", *run_dir, tmp_path / "ends.py")
    assert third.returncode == 0, "a lock does not outlive its job"
