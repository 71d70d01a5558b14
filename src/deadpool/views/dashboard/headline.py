"""The top line of the page: whether the job is safe, how fast it is, what protection costs, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deadpool.events.types import BY_NAME
from deadpool.views.dashboard import words
from deadpool.views.dashboard.history import Interruption, JobHistory, Record

Status = dict[str, Any]
_RATE_WINDOW_S = 600.0
_ADD_SPARE = "Start a spare: deadpool agent --spare --join HOST:PORT SCRIPT"
_WAITS = {
    "awaiting_spare": "waiting for a spare",
    "awaiting_return": "waiting for nodes to return",
    "no_majority": "waiting for a majority",
    "cut_off": "waiting for the network",
}


def headline(
    history: JobHistory, found: list[Interruption], status: Status | None, now: float, lacks: Sequence[str]
) -> dict[str, Any]:
    kind, text = state(history, found)
    until = float(history.ended["t"]) if history.ended is not None else now
    figures = [
        _step(history, status),
        _rate(history, status, now),
        _goodput(history, until),
        _protection(history, status),
        _cost(history, status),
        _spares(history, status),
    ]
    return {"state": kind, "text": text, "figures": figures, "actions": [*lacks, *actions(history, status)]}


def state(history: JobHistory, found: list[Interruption]) -> tuple[str, str]:
    """A word for the colour, and the same in words."""
    if history.ended is not None:
        failed = history.ended["what"] == "failed"
        return ("failed", "failed") if failed else ("completed", "completed")
    if history.wait is not None:
        return "waiting", _WAITS[history.wait["what"]]
    if history.trained_since is None:
        return "forming", "forming"
    if found and _is_open(found[-1]):
        doing = "handing over" if found[-1].kind == "drain" else "recovering"
        return "recovering", f"{doing}: {found[-1].cause}"
    if history.drain is not None:
        return "running", f"running, {history.drain['node']} is being drained"
    return "running", "running"


def _is_open(last: Interruption) -> bool:
    """Tells whether some rank does not go on yet. `resumed` comes after the first new step, which may take long."""
    return "connect" not in last.phases_s


def actions(history: JobHistory, status: Status | None) -> list[str]:
    """What a person has to do, the most urgent first."""
    if history.ended is not None:
        is_failed = history.ended["what"] == "failed"
        return [f"The job has failed: {history.ended.get('reason')}"] if is_failed else []
    found = [_advice(history.wait)] if history.wait is not None else []
    spares = status["spares"] if status else _spares_seen(history)
    if not spares and history.trained_since is not None and history.wait is None:
        found.append(f"No spare is left: after the next loss the job waits for one. {_ADD_SPARE}")
    for node in history.nodes.values():
        if node.lost or node.left:
            continue
        if node.quarantined:
            found.append(
                f"Check the machine of {node.name} ({node.quarantined}), then: deadpool node drain --node {node.name}"
            )
        if node.slow and not node.draining:
            found.append(f"{node.name} is slow ({node.slow}): deadpool node replace --straggler")
    if status and status["same_rack"]:
        found.append("Some copies lie in the rack of their own node: add nodes in other racks")
    return found


def _advice(wait: Record) -> str:
    limit = f" within {words.seconds(wait['deadline_s'])}" if wait.get("deadline_s") else ""
    return f"{wait.get('reason', '')}{limit}. {BY_NAME[wait['what']].action}".replace("`", "")


def _figure(name: str, label: str, value: str, detail: str = "") -> dict[str, str]:
    return {"name": name, "label": label, "value": value, "detail": detail}


def _step(history: JobHistory, status: Status | None) -> dict[str, str]:
    known = status["step"] if status else history.progress["step"] if history.progress else None
    since = f"generation {history.generation} since {history.cause}" if history.generation else ""
    return _figure("step", "Step", words.whole(known) if known is not None else "–", since)


def steps_per_hour(history: JobHistory, status: Status | None, now: float) -> float | None:
    """Over the last ten minutes, standstills included."""
    points = list(history.rate)
    if status and points and status["step"] > points[-1][1]:
        points.append((now, status["step"]))
    end = points[-1][0] if points else 0.0
    recent = [point for point in points if point[0] >= end - _RATE_WINDOW_S]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return None
    return 3600.0 * max(0, recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


def _rate(history: JobHistory, status: Status | None, now: float) -> dict[str, str]:
    rate, usual = steps_per_hour(history, status, now), history.usual_step_s
    detail = f"a step takes {words.seconds(usual)}" if usual else ""
    return _figure("rate", "Steps per hour", words.whole(round(rate)) if rate is not None else "–", detail)


def _goodput(history: JobHistory, until: float) -> dict[str, str]:
    share = history.fold.goodput(until)
    if share is None:
        return _figure("goodput", "Goodput", "–", "training has not begun")
    lost, whole = history.fold.lost_s(until), history.fold.trained_s(until)
    detail = f"{words.seconds(lost) if lost else 'nothing'} lost of {words.seconds(whole)}"
    return _figure("goodput", "Goodput", words.percent(share), detail)


def _protection(history: JobHistory, status: Status | None) -> dict[str, str]:
    every = status["interval"]["every"] if status else history.every
    interval = "a snapshot every step" if every == 1 else f"a snapshot every {every} steps"
    if status is None:
        last = history.progress.get("watermark") if history.progress else None
        known = last if last is not None else history.protected_step
        text = f"version {known:,}" if known is not None else "none"
        return _figure("protection", "Protection", text, interval)
    lag, version = status["lag_steps"], status["watermark"]
    if version is None or not status["protected"]:
        return _figure("protection", "Protection", "not yet", "copies are on their way to their holders")
    text = "no step at risk" if not lag else f"{words.plural(lag, 'step')} at risk"
    return _figure("protection", "Protection", text, f"version {version:,} is complete, {interval}")


def _cost(history: JobHistory, status: Status | None) -> dict[str, str]:
    budget = status["interval"]["budget"] if status else None
    limit = f"at most {100 * budget:g} % allowed" if budget else "no limit is set" if budget == 0 else ""
    measured = status["overhead"] if status else None
    share, error = (measured["share"], measured["error"]) if measured else _last_overhead(history)
    if share is None:
        return _figure("cost", "Cost of protection", "measuring" if status else "–", limit)
    return _figure("cost", "Cost of protection", f"{100 * share:.2f} ± {words.percent(error or 0.0)}", limit)


def _last_overhead(history: JobHistory) -> tuple[float | None, float | None]:
    last = history.progress or {}
    return last.get("overhead"), last.get("overhead_error")


def _spares(history: JobHistory, status: Status | None) -> dict[str, str]:
    count = status["spares"] if status else _spares_seen(history)
    lost = sum(node.lost is not None for node in history.nodes.values())
    takeovers = history.fold.events["took_over"]
    too = f", {words.plural(takeovers, 'takeover')} by another coordinator" if takeovers else ""
    return _figure("spares", "Spares left", words.whole(count), f"{words.plural(lost, 'node')} lost so far{too}")


def _spares_seen(history: JobHistory) -> int:
    gone = (node for node in history.nodes.values() if node.spare and not node.lost and not node.left)
    return sum(node.name not in history.seats for node in gone)
