"""What the runner sees of the job: its status, asked for again and again, its events, and the steps that ranks do."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.errors import DeadPoolError

Ask = Callable[[], dict[str, Any]]

_LOOK_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatedTrainer:
    name: str
    rank: int | None
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The job as its coordinator described it, asked at `at`."""

    at: float
    phase: str = "unknown"
    term: int = 0
    watermark: int = -1
    protected: bool = False
    seats: tuple[str, ...] = ()  # nodes that hold ranks, by position
    spares: tuple[str, ...] = ()
    holders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    trainers: dict[str, tuple[SeatedTrainer, ...]] = field(default_factory=dict)  # per node, seated ones only

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
    """Asks in a thread of its own: whoever is asked may be dead, and that costs seconds."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="deadpool-chaos-poller", daemon=True)
        self.view = StatusView(at=0.0)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            at = time.time()
            try:
                self.view = view_of(self._ask(), at)
            except (DeadPoolError, OSError, KeyError):
                continue  # nobody is in office: what was seen last is as old as it says


class Tail:
    """Records of a JSONL file, as they are written."""

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
    """By the last event that says so: a status is older than that."""
    told = (_PHASES[event["what"]] for event in reversed(events) if event["what"] in _PHASES and _is_so(event))
    return next(told, "forming")


def _is_so(event: dict[str, Any]) -> bool:
    """Whoever takes over something else than a job that runs has more to tell."""
    return event["what"] != "took_over" or bool(event["running"])


class StepProgress:
    """Which steps were done by every rank, and when."""

    def __init__(self, out: Path, world_size: int) -> None:
        self._tails = {rank: Tail(out / f"rank{rank}.jsonl") for rank in range(world_size)}
        self._newest = dict.fromkeys(self._tails, -1)
        self.ends: list[float] = []  # of steps that all have done, each when the last rank had done it

    def look(self) -> None:
        for rank, tail in self._tails.items():
            for record in tail.new():
                if record.get("step", -1) > self._newest[rank]:
                    before = self.done
                    self._newest[rank] = record["step"]
                    self.ends += [record["ended"]] * (self.done - before)

    @property
    def done(self) -> int:
        """The newest step that every rank has done."""
        return min(self._newest.values())

    @property
    def begun(self) -> int:
        """A step that nobody has done yet."""
        return max(self._newest.values()) + 1

    def longest_pause_s(self, since: float, until: float) -> float:
        """The longest time in which nothing new was done; steps that are done again may take it to the end."""
        inside = [end for end in self.ends if since <= end <= until]
        before = max((end for end in self.ends if end < since), default=since)
        times = sorted([before, *inside, until])
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)
