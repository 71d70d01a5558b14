"""The map of nodes: one cell per rank, with a letter for its state, and what each node holds for which others."""

from __future__ import annotations

import functools
import re
from typing import Any

from deadpool.views.dashboard.history import History, NodeSeen
from deadpool.views.dashboard.interruptions import Interruption

STATES = {
    "t": "training",
    "l": "lagging",
    "s": "slow",
    "u": "paused by the script",
    "r": "recovering",
    "d": "being drained",
    "q": "quarantined",
    "p": "spare, parked",
    "h": "spare, rehearsing",
    "i": "spare, starting",
    "x": "lost",
    "e": "ended",
}
"""Letters of cells. The page shows the words beside each colour."""

_GONE_SHOWN = 256  # lost nodes that stay on the map
_BEATS = 3  # heartbeats that a rank may be behind before it is called lagging


def node_map(history: History, found: list[Interruption], status: dict[str, Any] | None) -> dict[str, Any]:
    """`nodes` changes when nodes come and go, `cells` with each heartbeat."""
    live = {each["node"]: each for each in status["nodes"]} if status else {}
    names = _shown(history, live)
    index = {name: i for i, name in enumerate(names)}
    seat = {name: position for position, name in enumerate(history.seats)}
    lag_steps = _tolerated_lag(history)
    newest = max((step or 0 for each in live.values() for step in each["steps"].values()), default=0)
    is_stopped = bool(found) and found[-1].ended is None and "connect" not in found[-1].phases_s
    rows, cells, steps = [], [], []
    for name in names:
        seen, told = history.nodes.get(name) or NodeSeen(name), live.get(name)
        position = told["position"] if told else seat.get(name) if seen.lost is None else None
        rack = (told["rack"] if told else None) or seen.rack or ""
        holders = [index[holder] for holder in (told["holders"] if told else ()) if holder in index]
        rows.append([name, rack, -1 if position is None else position, holders, _note(seen), _last(seen)])
        own_steps = [step for step in told["steps"].values() if step is not None] if told else []
        steps.append(min(own_steps) if own_steps else -1)
        cells.append(_cells(history, seen, told, position, is_stopped, newest - lag_steps))
    return {
        "nodes": {"per_node": history.per_node, "rows": rows, "states": STATES, "mesh": history.mesh},
        "cells": {"states": cells, "steps": steps},
    }


def _shown(history: History, live: dict[str, Any]) -> list[str]:
    """Nodes of the job, and those that were lost last, ordered by rack and by the numbers in their names."""
    lost = [node.name for node in history.nodes.values() if node.lost is not None and node.name not in live]
    here = [node.name for node in history.nodes.values() if node.lost is None and not node.left]
    names = dict.fromkeys([*live, *here, *lost[-_GONE_SHOWN:]])
    racks = {name: (live.get(name) or {}).get("rack") or _rack(history, name) for name in names}
    return sorted(names, key=lambda name: (_natural(racks[name] or ""), _natural(name)))


def _rack(history: History, name: str) -> str | None:
    return history.nodes[name].rack if name in history.nodes else None


@functools.lru_cache(maxsize=1 << 16)
def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """n2 comes before n10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part)


def _note(seen: NodeSeen) -> str:
    return seen.lost or seen.quarantined or seen.slow or ""


def _last(seen: NodeSeen) -> list[int]:
    """Ranks that a lost node had; the first and the last of them."""
    return [seen.last_ranks[0], seen.last_ranks[-1]] if seen.lost and seen.last_ranks else []


def _tolerated_lag(history: History) -> int:
    """Heartbeats of nodes come at different moments, so ranks seem to be apart by as many steps as fit between them."""
    usual = history.usual_step_s
    return 2 + int(_BEATS / usual) if usual else 1 << 30


def _cells(
    history: History, seen: NodeSeen, told: dict[str, Any] | None, position: int | None, is_stopped: bool, least: int
) -> str:
    count = history.per_node
    if seen.lost is not None and told is None:
        return "x" * count
    if history.ended is not None:
        return "e" * count
    if position is None:
        return _spare_cells(seen, told, count)
    if is_stopped:
        return "r" * count
    if seen.quarantined or (told and told["quarantined"]):
        return "q" * count
    if seen.draining:
        return "d" * count
    if seen.slow:
        return "s" * count
    if told is None:
        return "t" * count
    return "".join(_rank_cell(told, str(rank), least) for rank in told["ranks"])


def _rank_cell(told: dict[str, Any], rank: str, least: int) -> str:
    step = told["steps"].get(rank)
    if rank in told["paused"]:
        return "u"
    return "l" if step is not None and step < least else "t"


def _spare_cells(seen: NodeSeen, told: dict[str, Any] | None, count: int) -> str:
    if seen.quarantined:
        return "q" * count
    if told is None:
        return ("p" if seen.rehearsed else "i") * count
    if told["role"] == "leaving":
        return "d" * count
    letters = "".join({"parked": "p", "rehearsing": "h"}.get(each["state"], "i") for each in told["trainers"])
    return (letters + "i" * count)[:count]
