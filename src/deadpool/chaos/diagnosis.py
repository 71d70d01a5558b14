"""What is known of a job that did not heal, left in a folder: its run folder, its last status, its processes, and where
every thread of theirs stands."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import time
from pathlib import Path

from deadpool.chaos.fleet import Fleet
from deadpool.chaos.status_view import Sight
from deadpool.control.launcher import LocalJob

_LAST_WORDS_S = 2.0


def take_down(job: LocalJob, fleet: Fleet, sight: Sight, folder: Path) -> None:
    """The job is over afterwards: the signal that makes a process tell its stacks ends it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "sight.json").write_text(json.dumps(dataclasses.asdict(sight), indent=2))
    processes = fleet.pids()
    (folder / "processes.txt").write_text("\n".join(_describe(processes)) + "\n")
    fleet.resume_all()
    for pids in processes.values():
        _abort(pids[1:])
    time.sleep(_LAST_WORDS_S)  # agents write down what their trainers said
    _abort([pids[0] for pids in processes.values() if pids])
    _abort([fleet.coordinator])
    time.sleep(_LAST_WORDS_S)
    shutil.copytree(job.run_dir.path, folder / "run", ignore=shutil.ignore_patterns("secret*", "*.pem"))


def _describe(processes: dict[str, list[int]]) -> list[str]:
    return [f"{node}: {_of(pid)}" for node, pids in processes.items() for pid in pids]


def _of(pid: int) -> str:
    said = []
    for name in ("comm", "wchan"):
        with contextlib.suppress(OSError):
            said.append(Path(f"/proc/{pid}/{name}").read_text().strip())
    with contextlib.suppress(OSError):
        said.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return f"{pid} {' '.join(said)}"


def _abort(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGABRT)
