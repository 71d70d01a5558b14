"""What a page shows.

`Losses` and `Job`: all that a page shows, as plain values by part. The live page is sent the parts that changed, the
report has all.

`copies`: who holds which version for whom, how fast copies travel, and what they take of the machines' memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deadpool.events.story import unwritten
from deadpool.events.types import BY_NAME
from deadpool.views.dashboard import words
from deadpool.views.dashboard.headline import headline
from deadpool.views.dashboard.history import History, Record
from deadpool.views.dashboard.interruptions import interruptions
from deadpool.views.dashboard.node_map import node_map
from deadpool.views.dashboard.plan import plan_part
from deadpool.views.dashboard.words import Series

_ROWS = 200


def copies(history: History, status: dict[str, Any] | None) -> dict[str, Any]:
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


def _row(history: History, node: dict[str, Any], version: int | None, held: dict[str, list[str]]) -> dict[str, Any]:
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
class Job:
    """What the run folder says of the job itself."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def view(
    history: History,
    losses: Losses,
    job: Job,
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
        "curves": curves(history, losses),
        "copies": copies(history, status),
        "plan": plan_part(history, found, job.settings, status, now=now),
        "events": _recent(history),
    }


def curves(history: History, losses: Losses) -> dict[str, Any]:
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


def _job(history: History, job: Job, *, answers: bool) -> dict[str, Any]:
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


def _recent(history: History) -> list[dict[str, Any]]:
    """The last events that the console shows, the newest first."""
    return [
        {"t": each["t"], "what": each["what"], "cause": each.get("cause"), "text": _sentence(each)}
        for each in reversed(history.recent)
    ]


def _sentence(record: Record) -> str:
    return (BY_NAME[record["what"]].sentence(record) or "")[:_TEXT_LIMIT]
