"""What the runner knows of the job: its status, polled, its events, and the steps that ranks have completed.

Of a job that did not recover, all that is known is written to a folder: its run folder, its last status, its processes,
and the stack of every thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.control.launch.launcher import LocalJob
from deadpool.errors import DeadPoolError
from deadpool_lab.chaos.surroundings.processes import JobProcesses

Ask = Callable[[], dict[str, Any]]

_POLL_S = 0.25

_LAST_WORDS_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatedTrainer:
    name: str
    rank: int | None
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The status that the coordinator gave when it was asked at `at`."""

    at: float
    phase: str = "unknown"
    term: int = 0
    watermark: int = -1
    protected: bool = False
    storage_waits: bool = False  # something is not on its disk yet, which has failed
    seats: tuple[str, ...] = ()  # nodes that hold ranks, by position
    spares: tuple[str, ...] = ()
    holders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    trainers: dict[str, tuple[SeatedTrainer, ...]] = field(default_factory=dict)  # by node, only those with a rank

    @property
    def members(self) -> tuple[str, ...]:
        return (*self.seats, *self.spares)


def view_of(body: dict[str, Any], at: float) -> StatusView:
    nodes = body["nodes"]
    seated = sorted((node for node in nodes if node["role"] == "active"), key=lambda node: node["position"])
    return StatusView(
        at=at,
        phase=body["phase"],
        term=body["term"],
        watermark=-1 if body["watermark"] is None else body["watermark"],
        protected=body["protected"],
        storage_waits=bool(body.get("storage")),
        seats=tuple(node["node"] for node in seated),
        spares=tuple(node["node"] for node in nodes if node["role"] == "spare"),
        holders={node["node"]: tuple(node["holders"]) for node in seated},
        trainers={node["node"]: _trainers(node) for node in seated},
    )


def _trainers(node: dict[str, Any]) -> tuple[SeatedTrainer, ...]:
    pids = node.get("trainer_pids", {})
    return tuple(
        SeatedTrainer(name=each["trainer"], rank=each["rank"], pid=pids[each["trainer"]])
        for each in node["trainers"]
        if each["state"] == "seated" and each["trainer"] in pids
    )


class StatusPoller:
    """Asks in a thread of its own: a coordinator that is dead costs seconds."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="deadpool-chaos-poller", daemon=True)
        self.view = StatusView(at=0.0)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._closing.wait(_POLL_S):
            at = time.time()
            try:
                self.view = view_of(self._ask(), at)
            except (DeadPoolError, OSError, KeyError):
                continue  # no coordinator answers: the last status stays, with its time


class Tail:
    """Reads the records of a JSONL file as they are written."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists() or self._path.stat().st_size == self._offset:
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue  # cut short by a kill


_PHASES = {
    "fence": "fencing",
    "awaiting_spare": "waiting",
    "planned": "preparing",
    "prepared": "connecting",
    "go": "running",
    "took_over": "running",
}


def newest_phase(events: Sequence[dict[str, Any]]) -> str:
    """The phase of the job by its newest event; a status would be older."""
    phases = (_PHASES[event["what"]] for event in reversed(events) if event["what"] in _PHASES and _sets_phase(event))
    return next(phases, "forming")


def _sets_phase(event: dict[str, Any]) -> bool:
    """A takeover of a job that does not run is followed by a fence, which says so."""
    return event["what"] != "took_over" or bool(event["running"])


class StepProgress:
    """Which steps every rank has completed, and when."""

    def __init__(self, out: Path, world_size: int) -> None:
        self._tails = {rank: Tail(out / f"rank{rank}.jsonl") for rank in range(world_size)}
        self._newest = dict.fromkeys(self._tails, -1)
        self.ends: list[float] = []  # of each step that all ranks have completed: when the last rank had

    def read_new(self) -> None:
        for rank, tail in self._tails.items():
            for record in tail.new():
                if record.get("step", -1) > self._newest[rank]:
                    before = self.done
                    self._newest[rank] = record["step"]
                    self.ends += [record["ended"]] * (self.done - before)

    @property
    def done(self) -> int:
        """The newest step that every rank has completed."""
        return min(self._newest.values())

    @property
    def begun(self) -> int:
        """The first step that no rank has completed yet."""
        return max(self._newest.values()) + 1

    def longest_pause_s(self, since: float, until: float) -> float:
        """The longest time without a new completed step, up to `until`."""
        inside = [end for end in self.ends if since <= end <= until]
        before = max((end for end in self.ends if end < since), default=since)
        times = sorted([before, *inside, until])
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


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
