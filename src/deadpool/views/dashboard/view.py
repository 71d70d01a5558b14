"""All that a page shows, as values by part. The live page is sent the parts that changed, the report has all.

Here are losses, the facts of the job, its copies (who holds which version for whom, how fast copies travel, and what
they take of the machines' memory), and the map of nodes: one cell per rank, with a letter for its state, and what each
node holds for which others. The top line and the plan have files of their own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deadpool.events.story import unwritten
from deadpool.events.types import BY_NAME
from deadpool.views.dashboard import words
from deadpool.views.dashboard.headline import headline
from deadpool.views.dashboard.history import Interruption, JobHistory, NodeSeen, Record, interruptions
from deadpool.views.dashboard.plan import plan_part
from deadpool.views.dashboard.words import Series

_ROWS = 200

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


def copies(history: JobHistory, status: dict[str, Any] | None) -> dict[str, Any]:
    """The nodes whose copies are furthest behind come first; a large job does not show all of them."""
    if status is None:
        told = (history.bandwidth or {}).get("summary")
        sent = f"{words.size(history.fold.sent_bytes)} were sent to holders" if history.fold.sent_bytes else ""
        return {"rows": [], "count": 0, "summary": told or sent or "no copies are known"}
    versions: dict[str, int] = {}
    for rank in status["ranks"]:
        version = rank.get("pushed_version")
        versions[rank["node"]] = min(versions.get(rank["node"], 1 << 62), -1 if version is None else version)
    held: dict[str, list[str]] = {}
    for node in status["nodes"]:
        for holder in node["holders"]:
            held.setdefault(holder, []).append(node["node"])
    rows = [_row(history, node, versions.get(node["node"]), held) for node in status["nodes"]]
    rows.sort(key=lambda row: (row["version"] is None, row["version"], row["node"]))
    return {"rows": rows[:_ROWS], "count": len(rows), "summary": _summary(status)}


def _row(history: JobHistory, node: dict[str, Any], version: int | None, held: dict[str, list[str]]) -> dict[str, Any]:
    seen = history.nodes.get(node["node"])
    memory = node.get("memory_bytes") or (seen.memory_bytes if seen else None)
    link = node.get("link_gbps") or (seen.link_gbps if seen else None)
    return {
        "node": node["node"],
        "role": node["role"],
        "version": version if version is not None and version >= 0 else None,
        "holders": node["holders"],
        "holds_for": held.get(node["node"], []),
        "arena_bytes": node.get("arena_bytes") or 0,
        "memory_bytes": memory,
        "push_gbps": node.get("push_gbps"),
        "link_gbps": link,
        "bytes_pushed": node.get("bytes_pushed") or 0,
    }


def _summary(status: dict[str, Any]) -> str:
    version, missing = status["watermark"], status["copies_missing"]
    if version is None:
        return "no version is complete yet"
    state = f"{missing} copies are still missing" if missing else "all copies are in place"
    sent = sum(rank["wire_bytes_per_step"] or 0.0 for rank in status["ranks"])
    arena = sum(node.get("arena_bytes") or 0 for node in status["nodes"])
    return f"version {version:,}: {state}; {words.size(sent)} sent per step, {words.size(arena)} of host memory"


_TEXT_LIMIT = 300


@dataclass(slots=True)
class Losses:
    """One curve from the journal: the loss that the first rank which logs one has logged."""

    key: str = ""
    by_step: Series = field(default_factory=Series)
    step_times: Series = field(default_factory=Series)  # seconds by time, from when the entries were made


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the run folder says of the job itself."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def view(
    history: JobHistory,
    losses: Losses,
    job: RunFacts,
    status: dict[str, Any] | None,
    *,
    now: float,
    answers: bool = True,
    lacks: Sequence[str] = (),
) -> dict[str, Any]:
    """`status` is what the coordinator answered last, None where there is none to ask. `answers`: it still does.
    `lacks` says what is not in the log, where there is no status that does."""
    found = interruptions(history)
    return {
        "job": _job(history, job, answers=answers),
        "head": headline(history, found, status, now, lacks or unwritten(status)),
        **node_map(history, found, status),
        "faults": [each.facts() for each in found],
        "audits": audits(history),
        "curves": curves(history, losses),
        "copies": copies(history, status),
        "plan": plan_part(history, found, job.settings, status, now=now),
        "events": _recent(history),
    }


def audits(history: JobHistory) -> dict[str, Any]:
    """Audits of steps and silent errors, the newest last; a long job does not show all of them."""
    found = history.silent.findings
    errors = sum(each.is_error for each in found)
    counted = words.plural(history.silent.alike_count, "audit")
    told = f"{counted} found all ranks alike, {words.plural(errors, 'error')} found" if found else ""
    return {"summary": told, "rows": [each.facts() for each in found[-_ROWS:]]}


def curves(history: JobHistory, losses: Losses) -> dict[str, Any]:
    """Step times come from the journal if there is one, for it has every step."""
    has_journal = len(losses.step_times.xs) > len(history.step_times.xs)
    times = (losses.step_times if has_journal else history.step_times).points()
    loss = losses.by_step.points()
    return {
        "step_t": [round(t, 3) for t, _ in times],
        "step_s": [round(s, 6) for _, s in times],
        "loss_key": losses.key,
        "loss_step": [step for step, _ in loss],
        "loss": [value for _, value in loss],
    }


def _job(history: JobHistory, job: RunFacts, *, answers: bool) -> dict[str, Any]:
    return {
        "name": job.name,
        "world_size": len(history.seats) * history.per_node,
        "began": history.began,
        "trained_since": history.trained_since,
        "ended": history.ended["t"] if history.ended else None,
        "end_reason": history.ended.get("reason") if history.ended else None,
        "answers": answers,
        "settings": {name: value for name, value in job.settings.items() if value not in ("", [], None)},
        "versions": job.versions,
    }


def _recent(history: JobHistory) -> list[dict[str, Any]]:
    """The last events that the console shows, the newest first."""
    return [
        {"t": each["t"], "what": each["what"], "cause": each.get("cause"), "text": _sentence(each)}
        for each in reversed(history.recent)
    ]


def _sentence(record: Record) -> str:
    return (BY_NAME[record["what"]].sentence(record) or "")[:_TEXT_LIMIT]


def node_map(history: JobHistory, found: list[Interruption], status: dict[str, Any] | None) -> dict[str, Any]:
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


def _shown(history: JobHistory, live: dict[str, Any]) -> list[str]:
    """Nodes of the job, and those that were lost last, ordered by rack and by the numbers in their names."""
    lost = [node.name for node in history.nodes.values() if node.lost is not None and node.name not in live]
    here = [node.name for node in history.nodes.values() if node.lost is None and not node.left]
    names = dict.fromkeys([*live, *here, *lost[-_GONE_SHOWN:]])
    racks = {name: (live.get(name) or {}).get("rack") or _rack(history, name) for name in names}
    return sorted(names, key=lambda name: (_natural(racks[name] or ""), _natural(name)))


def _rack(history: JobHistory, name: str) -> str | None:
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


def _tolerated_lag(history: JobHistory) -> int:
    """Heartbeats of nodes come at different moments, so ranks seem to be apart by as many steps as fit between them."""
    usual = history.usual_step_s
    return 2 + int(_BEATS / usual) if usual else 1 << 30


def _cells(
    history: JobHistory, seen: NodeSeen, told: dict[str, Any] | None, position: int | None, is_stopped: bool, least: int
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
