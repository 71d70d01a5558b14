"""The decisions about protection of a run, and whether they went back and forth. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from deadpool.protocol.adaptive_bounds import CHANGES
from deadpool.protocol.features.adaptation.coordinator.adaptation import UNGUARDED

Record = dict[str, Any]
DECISIONS = ("protection", "eviction", "reconfiguration", "reconfiguration_failed")
_SLACK_S = 0.5
"""Times of events are of the wall clock, decisions are made by another one."""


def decisions(events: Sequence[Record]) -> list[Record]:
    fields = ("t", "what", "node", "change", "reason")
    return [{name: e[name] for name in fields if name in e} for e in events if e["what"] in DECISIONS]


def oscillations(events: Sequence[Record], dwell_s: float) -> list[str]:
    """Rule 28, protection changes slowly and within bounds: more changes than the budget allows, or a change that was
    taken back within the dwell time. Each coordinator has a budget of its own."""
    found: list[str] = []
    for term in _terms(events):
        changes = [event for event in term if event["what"] == "protection"]
        found += _beyond_the_budget([event["t"] for event in changes], CHANGES * dwell_s)
        for subject in sorted({str(event.get("node")) for event in changes}):
            history = [(e["t"], e["change"]) for e in changes if str(e.get("node")) == subject]
            found += _taken_back(subject, history, dwell_s)
    return found


def _terms(events: Sequence[Record]) -> Iterator[list[Record]]:
    term: list[Record] = []
    for event in events:
        if event["what"] == "took_over":
            yield term
            term = []
        term.append(event)
    yield term


def _beyond_the_budget(times: Sequence[float], within_s: float) -> Iterator[str]:
    for first, last in zip(times, times[CHANGES:], strict=False):
        if last - first < within_s - _SLACK_S:
            yield f"protection has changed {CHANGES + 1} times within {last - first:.0f} s"


def _taken_back(subject: str, history: Sequence[tuple[float, str]], dwell_s: float) -> Iterator[str]:
    known = [(0.0, UNGUARDED), *history]
    for (_, before), (at, between), (again_at, again) in zip(known, known[1:], known[2:], strict=False):
        if before == again and again_at - at < dwell_s - _SLACK_S:
            yield f"{subject} was {before} again {again_at - at:.0f} s after it was {between}"
