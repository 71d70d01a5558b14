"""Options of `scripts/check`, and the throttle that it runs under with `--speed slow`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LIMIT_S, wait_until

ROOT = Path(__file__).parents[2]
THROTTLE = [sys.executable, str(ROOT / "scripts" / "throttle.py")]
FACTS = """
import json, os
own = [line.strip().split(":", 2) for line in open("/proc/self/cgroup")]
print(json.dumps({"cores": len(os.sched_getaffinity(0)), "cgroups": [path for _, _, path in own]}))
"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--speed", "quick"], "--speed is slow or fast, not 'quick'"),
        (["--speed="], "--speed is slow or fast, not ''"),
        (["-x", "--speed"], "--speed needs a value: --speed slow|fast, --jitter SEED"),
        (["--jitter", "often"], "--jitter takes a whole number as its seed, not 'often'"),
        (["--jitter=-1"], "--jitter takes a whole number as its seed, not '-1'"),
    ],
)
def test_what_it_does_not_know_is_refused(words, sentence):
    done = subprocess.run([ROOT / "scripts" / "check", *words], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"scripts/check: {sentence}\n")


def groups_of(throttle: subprocess.Popen[str]) -> list[Path]:
    """Other checks on this machine have theirs."""
    return list(Path("/sys/fs/cgroup").glob(f"**/deadpool-check-{throttle.pid}"))


def run_slowly(*command: str) -> tuple[int, str, str]:
    """Its exit code and what it said. It has left no group."""
    words = [*THROTTLE, *command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            said, complained = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert groups_of(process) == []
    return process.returncode, said, complained


def test_a_slow_command_has_less_than_the_machine_and_leaves_no_group():
    code, said, complained = run_slowly(sys.executable, "-c", FACTS)
    assert code == 0, complained
    way, facts = said.splitlines()
    assert way.startswith("== speed: ")
    found = json.loads(facts)
    assert found["cores"] == 1 or any("deadpool-check-" in path for path in found["cgroups"])


def test_the_exit_code_of_a_slow_command_is_its_own():
    assert run_slowly("sh", "-c", "exit 5")[0] == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_slow_command_and_its_group(tmp_path, number):
    """As a terminal does it: every process of the foreground gets the signal."""
    started = tmp_path / "started"
    command = [*THROTTLE, "sh", "-c", 'touch "$0"; exec sleep 6000', str(started)]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, text=True)
    wait_until(started.exists, "the start of the command")
    os.killpg(process.pid, number)
    assert process.wait(LIMIT_S) == 128 + number
    assert groups_of(process) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a cgroup, which is left when a process stays in it")
def test_what_a_slow_command_leaves_running_is_named_and_moved_out(tmp_path):
    _, said, complained = run_slowly("sh", "-c", 'sleep 6000 >/dev/null 2>&1 & echo "$!"')
    pid = said.split()[-1]
    try:
        assert (f"still running at the end: processes {pid}" in complained) == ("cgroup /" in said)
    finally:
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.timeout(1)
def test_a_mark_cannot_shorten_the_limit_of_a_test(request):
    limit = float(request.config.getini("timeout"))
    assert limit >= 600
    assert request.node.get_closest_marker("timeout").args == (limit,)
