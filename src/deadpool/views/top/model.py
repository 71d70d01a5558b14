"""What is shown on the terminal, and where it comes from.

`Model` has what is shown, and what keys have chosen: values, so that a test needs no terminal. `Sources` asks the
coordinator and reads the event log, in a thread: a coordinator that is slow does not freeze the keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.errors import DeadPoolError
from deadpool.events.story import Recovery, recoveries
from deadpool.views.metrics.folds import EventTail, JobFold

Status = dict[str, Any]
NODES, STORY = "nodes", "story"

_EVERY_S = 1.0
_SHARE = 20
"""The pause between two questions, as a multiple of the time that an answer took: watching a large job must not be work
for its coordinator.
"""
_NOT_TOLD = {"progress", "step_times", "capture_missed"}

_REMEMBERED = 60_000
"""Events: more than a recovery of some thousand ranks has."""

Ask = Callable[..., dict[str, Any]]


@dataclass(slots=True)
class Model:
    status: Status | None = None  # the last answer
    failure: str = ""  # why there was none since
    fold: JobFold = field(default_factory=JobFold)
    story: list[str] = field(default_factory=list)
    """Lines of the last recovery."""
    screen: str = NODES
    selected: int = 0
    page_rows: int = 10  # as last drawn
    confirming: str = ""  # the node that is to be drained, if a key says so
    message: str = ""
    is_over: bool = False
    _nodes: list[Status] = field(default_factory=list)
    _has_moved: bool = False

    def update(self, status: Status) -> None:
        """The cursor stays on the node that a key has moved it to, and else in the first line."""
        chosen = self.node if self._has_moved else None
        self.status, self.failure = status, ""
        self._nodes = sorted(status["nodes"], key=lambda node: _order(node, status))
        names = [node["node"] for node in self._nodes]
        self.selected = names.index(chosen) if chosen in names else min(self.selected, max(0, len(names) - 1))

    @property
    def nodes(self) -> list[Status]:
        """Returns the nodes: those that somebody should look at come first, then ranks, then spares."""
        return self._nodes

    @property
    def node(self) -> str | None:
        return str(self._nodes[self.selected]["node"]) if self._nodes else None

    @property
    def page(self) -> range:
        first = self.selected - self.selected % max(1, self.page_rows)
        return range(first, min(first + self.page_rows, len(self._nodes)))

    def press(self, key: str) -> str | None:
        """Returns the node that is to be drained now, if this key has confirmed it."""
        if self.confirming:
            node, self.confirming = self.confirming, ""
            self.message = f"draining {node} ..." if key == "y" else "nothing was drained"
            return node if key == "y" else None
        self.message = ""
        if key == "q":
            self.is_over = True
        elif key == "s":
            self.screen = NODES if self.screen == STORY else STORY
        elif key == "escape":
            self.screen = NODES
        elif key == "d" and self.node is not None and self.screen == NODES:
            self.confirming = self.node
        else:
            self._move(key)
        return None

    def _move(self, key: str) -> None:
        page, all_nodes = self.page_rows, len(self._nodes)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, " ": page}
        steps |= {"home": -all_nodes, "g": -all_nodes, "end": all_nodes, "G": all_nodes}
        self._has_moved |= key in steps
        moved = self.selected + steps.get(key, 0)
        self.selected = max(0, min(moved, len(self._nodes) - 1))


def state_of(node: Status, status: Status) -> str:
    """In a word, so that no color is needed to see it."""
    drain = status["drain"]
    if node["quarantined"]:
        return "quarantined"
    if drain is not None and drain["node"] == node["node"]:
        return "leaving"
    if any(slow["node"] == node["node"] for slow in status["stragglers"]):
        return "slow"
    if node["role"] != "active":
        return str(node["role"])
    return "pausing" if node["paused"] else "training" if status["phase"] == "running" else "waiting"


_FIRST = ("quarantined", "slow", "leaving")


def _order(node: Status, status: Status) -> tuple[int, int, str]:
    state = state_of(node, status)
    place = node["position"] if node["position"] is not None else len(status["nodes"])
    return (_FIRST.index(state) if state in _FIRST else len(_FIRST), place, node["node"])


class Sources:
    def __init__(self, ask: Ask, events: Path) -> None:
        """`ask` takes a request and its arguments; it may raise DeadPoolError."""
        self._ask, self._tail = ask, EventTail(events)
        self._records: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)
        self._status: dict[str, Any] | None = None
        self.failure, self.message = "", ""
        self.fold, self.story = JobFold(), list[str]()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)

    def take_status(self) -> dict[str, Any] | None:
        """None: there is no newer one."""
        with self._lock:
            status, self._status = self._status, None
            return status

    def drain(self, node: str) -> None:
        threading.Thread(target=self._drain, args=(node,), daemon=True).start()

    def _drain(self, node: str) -> None:
        try:
            answer = self._ask("drain", node=node)
            to = f"; its ranks go to {answer['successor']}" if answer.get("ranks") else ""
            self.message = f"node {node} leaves{to}"
        except DeadPoolError as error:
            self.message = f"not drained: {error}"

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            self._read_events()
            self._read_status()
            if self._closed.wait(max(_EVERY_S, _SHARE * (time.monotonic() - began))):
                return

    def _read_status(self) -> None:
        try:
            status = self._ask("status")
        except DeadPoolError as error:
            self.failure = str(error)
            return
        with self._lock:
            self._status, self.failure = status, ""

    def _read_events(self) -> None:
        """Where the log is on another machine, what is made of it is left out."""
        fresh = list(self._tail.read())
        for record in fresh:
            self.fold.add(record)
        self._records += [record for record in fresh if record["what"] not in _NOT_TOLD]
        del self._records[:-_REMEMBERED]
        if any(record["what"] in ("go", "resumed", "fault") for record in fresh):
            told = recoveries(sorted(self._records, key=lambda record: float(record["t"])))
            self.story = story_lines(told[-1]) if told else []


def story_lines(recovery: Recovery) -> list[str]:
    """The newest recovery as `deadpool show story` tells it, shorter."""
    total = sum(recovery.phases_s.values()) or 1.0
    lines = [f"{recovery.cause}: {recovery.fault['reason']}, ranks {recovery.fault['ranks']}"]
    for name, seconds in recovery.phases_s.items():
        lines.append(f"  {name:8} {1e3 * seconds:9.1f} ms  {'#' * max(1, round(30 * seconds / total))}")
    lines.append(f"  resumed at step {recovery.resume_step}, {recovery.lost_steps} completed steps redone")
    for record in recovery.records:
        place = " ".join(f"{name}={record[name]}" for name in ("node", "rank", "trainer") if name in record)
        lines.append(f"  +{1e3 * (float(record['t']) - recovery.began):8.1f} ms {record['what']:14} {place}")
    return lines
