"""The command of --while-parked, as real processes: it is gone within a second, whatever it does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deadpool.control.parked_command import ParkedCommand
from deadpool.control.parked_keeper import NICENESS
from deadpool.protocol.effects import ParkedWorkEnded

COMMANDS = {
    "ends on SIGTERM": "echo began; exec sleep 60",
    "ignores SIGTERM": "trap '' TERM; echo began; while true; do sleep 60; done",
    "is stopped": "echo began; kill -STOP $$; sleep 60",
    "has children": "sleep 60 & sleep 60 & (sleep 60 & sleep 60) & echo began; wait",
    "daemonises": "setsid sh -c 'setsid sleep 61 & sleep 0.1' & sleep 0.3; echo began; sleep 60",
    "is left by its daemon": "setsid sh -c \"trap '' TERM; echo began; while true; do sleep 61; done\" & exit 0",
    "forks all the time": "trap '' TERM; echo began; while true; do (trap '' TERM; sleep 60) & sleep 0.02; done",
}


class Played:
    def __init__(self, command: str, folder: Path) -> None:
        self.log = folder / "n0.parked.log"
        self.ended: asyncio.Queue[ParkedWorkEnded] = asyncio.Queue()
        told = {"node": "n0", "logs": str(folder)}
        self.command = ParkedCommand(command, self.log, told, on_ended=self.ended.put_nowait)

    async def began(self) -> None:
        while not self.log.exists() or "began" not in self.log.read_text():
            await asyncio.sleep(0.01)


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
def test_it_is_gone_within_a_second(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKED_AS", str(tmp_path))

    async def play() -> ParkedWorkEnded:
        played = Played(COMMANDS[kind], tmp_path)
        played.command.start(1)
        await asyncio.wait_for(played.began(), 20)
        monkeypatch.delenv("MARKED_AS")
        played.command.stop()
        return await asyncio.wait_for(played.ended.get(), 20)

    ended = asyncio.run(play())
    assert left(f"MARKED_AS={tmp_path}") == []
    assert ended.took_s < 1.0
    obeys = kind in ("ends on SIGTERM", "has children", "daemonises")
    assert (ended.killed == 0) == obeys or kind == "is stopped"


def test_its_own_end_is_told_with_its_code(tmp_path: Path) -> None:
    async def play() -> ParkedWorkEnded:
        played = Played("exit 7", tmp_path)
        played.command.start(1)
        return await asyncio.wait_for(played.ended.get(), 20)

    assert asyncio.run(play()) == ParkedWorkEnded(code=7)


def test_it_is_niced_knows_where_it_is_and_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEADPOOL_SECRET_FILE", "/secret")
    monkeypatch.setenv("DEADPOOL_SECRET", "x" * 32)

    async def play() -> None:
        played = Played("nice; env | grep DEADPOOL | sort", tmp_path)
        played.command.start(3)
        await asyncio.wait_for(played.ended.get(), 20)

    asyncio.run(play())
    told = [f"DEADPOOL_PARKED_LOGS={tmp_path}", "DEADPOOL_PARKED_NODE=n0", "DEADPOOL_PARKED_START=3"]
    lines = (tmp_path / "n0.parked.log").read_text().splitlines()
    assert lines == [str(min(19, os.nice(0) + NICENESS)), *told]


def test_it_does_not_outlive_an_agent_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio
from pathlib import Path
from deadpool.control.parked_command import ParkedCommand
async def main():
    command = ParkedCommand("setsid sleep 63 & echo began; sleep 63", Path({str(tmp_path / "log")!r}), {{}}, print)
    command.start(1)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    variables = {**os.environ, "MARKED_AS": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=variables) as agent:
        deadline = time.monotonic() + 20
        while not (tmp_path / "log").exists() or "began" not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        agent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while found := left(f"MARKED_AS={tmp_path}"):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
