"""Who holds which version for whom, how fast copies travel, and what they take of the machines' memory."""

from __future__ import annotations

from typing import Any

from deadpool.views.dashboard import words
from deadpool.views.dashboard.history import History

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
