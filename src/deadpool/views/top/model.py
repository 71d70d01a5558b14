"""What is shown, and what keys have chosen: pure values, so that a test needs no terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deadpool.views.metrics.job_fold import JobFold

Status = dict[str, Any]
NODES, STORY = "nodes", "story"


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
