"""What is known of a job that did not recover, written to a folder: its run folder, its last status, its processes, and
the stack of every thread."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import time
from pathlib import Path

from deadpool.control.launch.launcher import LocalJob
from deadpool_lab.chaos.status_view import StatusView
from deadpool_lab.chaos.surroundings.processes import JobProcesses

_LAST_WORDS_S = 2.0


def take_down(
    job: LocalJob, processes: JobProcesses, view: StatusView, folder: Path, *, said: Path | None = None
) -> None:
    """Ends the job: SIGABRT makes a process print its stacks, and then the process is gone. `said` has what its
    processes have printed, if that is not in the run folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps(dataclasses.asdict(view), indent=2))
    pids_by_node = processes.pids()
    (folder / "processes.txt").write_text("\n".join(_describe(pids_by_node)) + "\n")
    processes.resume_all()
    for pids in pids_by_node.values():
        _abort(pids[1:])
    time.sleep(_LAST_WORDS_S)  # agents write what their trainers printed to the logs
    _abort([pids[0] for pids in pids_by_node.values() if pids])
    _abort([processes.coordinator])
    time.sleep(_LAST_WORDS_S)
    if said is not None:
        shutil.copy(said, folder)
    shutil.copytree(job.run_dir.path, folder / "run", ignore=shutil.ignore_patterns("secret*", "*.pem"))


def _describe(pids_by_node: dict[str, list[int]]) -> list[str]:
    return [f"{node}: {_of(pid)}" for node, pids in pids_by_node.items() for pid in pids]


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
