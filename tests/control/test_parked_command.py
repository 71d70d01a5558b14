"""The command of --while-parked, as real processes: it is gone when it is told to stop, whatever it does.

How long that takes is measured by benchmarks/pool.py: a niced command says little about it on a machine that is busy.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LIMIT_S, wait_until, wait_until_async

from deadpool.control.trainers import parked_command
from deadpool.control.trainers.parked_command import ParkedCommand
from deadpool.control.trainers.parked_keeper import NICENESS, _children, _children_by_parent
from deadpool.protocol.inputs import ParkedWorkEnded

COMMANDS = {
    "ends on SIGTERM": "echo began; exec sleep 600",
    "ignores SIGTERM": "trap '' TERM; echo began; while true; do sleep 600; done",
    "is stopped": "echo began; kill -STOP $$; sleep 600",
    "has children": "sleep 6000 & sleep 6000 & (sleep 6000 & sleep 600) & echo began; wait",
    "daemonises": "setsid sh -c 'setsid sh -c \"echo began; exec sleep 601\" &' & sleep 600",
    "is left by its daemon": "setsid sh -c \"trap '' TERM; echo began; while true; do sleep 601; done\" & exit 0",
    "forks all the time": "trap '' TERM; echo began; while true; do (trap '' TERM; sleep 600) & sleep 0.02; done",
}

OBEDIENT = ("ends on SIGTERM", "has children", "daemonises")
LONG_S = LIMIT_S
"""Enough for a niced process to end on SIGTERM, however busy the machine is."""


class Played:
    def __init__(self, command: str, folder: Path) -> None:
        self.log = folder / "n0.parked.log"
        self.ended: asyncio.Queue[ParkedWorkEnded] = asyncio.Queue()
        told = {"node": "n0", "logs": str(folder)}
        self.command = ParkedCommand(command, self.log, told, on_ended=self.ended.put_nowait)

    async def began(self) -> None:
        await wait_until_async(lambda: has_begun(self.log), "its first line")


def has_begun(log: Path) -> bool:
    return log.exists() and "began" in log.read_text()


def left(mark: str) -> list[str]:
    """Processes that have this in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("kind", COMMANDS)
def test_it_is_gone_when_it_is_stopped(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKED_AS", str(tmp_path))
    if kind in OBEDIENT:
        monkeypatch.setattr(parked_command, "GRACE_S", LONG_S)

    async def play() -> ParkedWorkEnded:
        played = Played(COMMANDS[kind], tmp_path)
        played.command.start(1)
        await played.began()
        monkeypatch.delenv("MARKED_AS")
        played.command.stop()
        return await asyncio.wait_for(played.ended.get(), LIMIT_S)

    ended = asyncio.run(play())
    assert left(f"MARKED_AS={tmp_path}") == []
    assert (ended.killed == 0) == (kind in OBEDIENT) or kind == "is stopped"


def test_a_keeper_that_gets_no_cpu_time_leaves_nobody_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, which is as little as it can get."""
    monkeypatch.setenv("MARKED_AS", str(tmp_path))
    monkeypatch.setattr(parked_command, "GRACE_S", 0.02)

    async def play() -> None:
        played = Played("(trap '' TERM; setsid sleep 602) & (sleep 602 & sleep 602) & echo began; wait", tmp_path)
        played.command.start(1)
        await played.began()
        assert played.command._keeper is not None
        played.command._keeper.send_signal(signal.SIGSTOP)
        await played.command.close()

    asyncio.run(play())
    wait_until(lambda: left(f"MARKED_AS={tmp_path}") == [], "the end of those that were killed")


def test_it_is_stopped_where_the_kernel_lists_no_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKED_AS", str(tmp_path))
    code = (
        "from deadpool.control.trainers import parked_keeper as keeper; keeper._kernel_lists_children = lambda: False; "
        "keeper._children = lambda pid: []; keeper.main()"
    )
    command = "setsid sh -c 'setsid sh -c \"echo began; exec sleep 601\" &' & sleep 600"
    words = [sys.executable, "-c", code, str(LONG_S), str(tmp_path / "log"), command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as keeper:
        wait_until(lambda: has_begun(tmp_path / "log"), "its first line")
        keeper.terminate()
        output, _ = keeper.communicate(timeout=LIMIT_S)
    assert output.split()[1:] == ["0"]
    assert left(f"MARKED_AS={tmp_path}") == []


def test_parents_tell_the_same_as_the_kernels_lists() -> None:
    words = ["sh", "-c", "sleep 6000 & sleep 6000 & echo began; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None and process.stdout.readline() == b"began\n"
        found = sorted(_children_by_parent()[process.pid])
        assert len(found) == 2 and found == sorted(_children(process.pid))
        os.killpg(process.pid, signal.SIGKILL)


def test_one_that_cannot_be_started_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))

    async def play() -> ParkedWorkEnded:
        played = Played("echo began", tmp_path)
        played.command.start(1)
        played.command.stop()
        ended = await asyncio.wait_for(played.ended.get(), LIMIT_S)
        await played.command.close()
        return ended

    assert asyncio.run(play()) == ParkedWorkEnded(code=127)


def test_its_own_end_is_told_with_its_code(tmp_path: Path) -> None:
    async def play() -> ParkedWorkEnded:
        played = Played("exit 7", tmp_path)
        played.command.start(1)
        return await asyncio.wait_for(played.ended.get(), LIMIT_S)

    assert asyncio.run(play()) == ParkedWorkEnded(code=7)


def test_it_is_niced_knows_where_it_is_and_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEADPOOL_SECRET_FILE", "/secret")
    monkeypatch.setenv("DEADPOOL_SECRET", "x" * 32)
    monkeypatch.delenv("DEADPOOL_REHEARSE_RECOVERY")  # that all tests have
    monkeypatch.delenv("DEADPOOL_LOOKED_AT", raising=False)  # set by commands that other tests call in this process

    async def play() -> None:
        played = Played("nice; env | grep DEADPOOL | sort", tmp_path)
        played.command.start(3)
        await asyncio.wait_for(played.ended.get(), LIMIT_S)

    asyncio.run(play())
    told = [f"DEADPOOL_PARKED_LOGS={tmp_path}", "DEADPOOL_PARKED_NODE=n0", "DEADPOOL_PARKED_START=3"]
    lines = (tmp_path / "n0.parked.log").read_text().splitlines()
    assert lines == [str(min(19, os.nice(0) + NICENESS)), *told]


def test_it_does_not_outlive_an_agent_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio
from pathlib import Path
from deadpool.control.trainers.parked_command import ParkedCommand
async def main():
    command = ParkedCommand("setsid sleep 603 & echo began; sleep 603", Path({str(tmp_path / "log")!r}), {{}}, print)
    command.start(1)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    variables = {**os.environ, "MARKED_AS": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=variables) as agent:
        wait_until(lambda: has_begun(tmp_path / "log"), "its first line")
        agent.send_signal(signal.SIGKILL)
    wait_until(lambda: not left(f"MARKED_AS={tmp_path}"), "the end of all")
