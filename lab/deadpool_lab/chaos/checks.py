"""What is checked after a run: its journal, its log, its decisions.

`journal_problems`: whether the journal of a job under faults has every step of every rank once, in order, with its
loss.

`Span`: whether the log of a job's events is whole after its disk has failed. No I/O but reading the log.

A coordinator prints each event, too, to a terminal that the disk does not hold up: what it said has to be in the
log, once. Only what waited in the memory of a coordinator that was killed is lost, and what one that ended said is
lost.

`decisions` and `oscillations`: the decisions about protection of a run, and whether they went back and forth. No
I/O.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.demo.trial import Results
from deadpool.protocol.causes import CHANGES
from deadpool.protocol.features.adaptation.coordinator.adaptation import UNGUARDED


def journal_problems(folder: Path, results: Results) -> list[str]:
    """Empty if each rank's journal has each step exactly once, in order, with the loss that the script wrote when it
    computed that step for the last time."""
    return [text for rank in sorted(results.losses) for text in _problems(folder, rank, results.losses[rank])]


def _problems(folder: Path, rank: int, losses: dict[int, str]) -> Iterator[str]:
    """Reads the lines of the file: `deadpool show journal` would hide what is there twice."""
    path = folder / f"rank-{rank:05d}.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    steps = [line["step"] for line in lines]
    if steps != sorted(losses):
        missing, twice = sorted(set(losses) - set(steps)), sorted({step for step in steps if steps.count(step) > 1})
        yield f"journal of rank {rank}: steps {missing} are missing, {twice} are there twice, or they are out of order"
    wrong = [line["step"] for line in lines if line["values"]["loss"].hex() != losses.get(line["step"])]
    if wrong:
        yield f"journal of rank {rank}: losses differ at steps {wrong}"


Record = dict[str, Any]

_ADDED = ("process", "text")  # fields that a record has on a terminal only
_BACK_S = 3.0
"""What has waited is tried again after a second, and whether it was written is looked at every second."""
_UNWRITTEN_S = 1.0
"""What a coordinator has said so shortly before it was killed may be in no file: a thread writes it."""
_CERTAIN_S = 15.0
"""A coordinator says something more often than that, so it has found out that the disk takes nothing."""
_LOST = re.compile(r"(\d+) events are lost")


@dataclass(frozen=True, slots=True)
class Span:
    begin: float
    end: float

    def has(self, t: float) -> bool:
        return self.begin <= t <= self.end


def spans_of_loss(kills: Sequence[float], outages: Sequence[Span]) -> list[Span]:
    """Returns when a coordinator said what it may have taken with it. `kills` are the times at which one was killed."""
    spans = []
    for at in kills:
        begins = [outage.begin for outage in outages if outage.begin <= at <= outage.end + _BACK_S]
        spans.append(Span(min([at - _UNWRITTEN_S, *begins]), at + _UNWRITTEN_S))
    return spans


def read_log(path: Path) -> list[Record]:
    """All whole lines; one may be cut short by a full disk or a kill."""
    records = []
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict) and "what" in record]


def log_problems(log: Sequence[Record], said: Iterable[Record], lost: Sequence[Span]) -> list[str]:
    """What a coordinator said and the log does not have once. `lost` are the times of which that is no wonder."""
    spoken = [record for record in said if record.get("process") == "coordinator"]
    told_lost = sum(int(found[1]) for each in spoken if (found := _LOST.search(str(each.get("text", "")))))
    counts = Counter(map(_key, log))
    events = [record for record in spoken if "what" in record]
    missing = [each for each in events if not counts[_key(each)] and not any(span.has(each["t"]) for span in lost)]
    twice = [json.loads(key)["what"] for key, count in counts.items() if count > 1]
    problems = [f"events.jsonl has these more than once: {sorted(twice)}"] if twice else []
    if len(missing) > told_lost:
        names = ", ".join(f"{each['what']} of {each['t']:.3f}" for each in missing[:5])
        problems.append(f"events.jsonl lacks {len(missing)} of {len(events)} events that were said: {names}")
    return problems


def _key(record: Record) -> str:
    """The same for a record in the log and as it was said: what is empty is not said."""
    return json.dumps(
        {name: record[name] for name in sorted(record) if name not in _ADDED and record[name] is not None}
    )


def storage_problems(log: Sequence[Record], outages: Sequence[Span], coordinators: Sequence[Span]) -> list[str]:
    """Each outage is told once by whoever has something to write, and its end as well. `coordinators` are the times at
    which a coordinator was hit or replaced: another one tells of an outage again, or nobody does."""
    outages = _joined(outages)
    tellings = sorted((each for each in log if each["what"] in ("storage_failed", "storage_back")), key=_time)
    found = list(_false_alarms(tellings, outages))
    for who in sorted({_who(each) for each in tellings}):
        own = [each for each in tellings if _who(each) == who]
        found += _told_often(who, own, outages, coordinators)
        found += _not_ended(who, own, coordinators)
    return found + list(_not_told(tellings, outages, coordinators))


def _joined(outages: Sequence[Span]) -> list[Span]:
    """Two that follow each other at once are one for whoever tries again every second."""
    joined: list[Span] = []
    for outage in sorted(outages, key=lambda outage: outage.begin):
        if joined and outage.begin <= joined[-1].end + _BACK_S:
            joined[-1] = Span(joined[-1].begin, max(joined[-1].end, outage.end))
        else:
            joined.append(outage)
    return joined


def _time(record: Record) -> float:
    return float(record["t"])


def _who(record: Record) -> tuple[str, str]:
    return str(record.get("node") or "coordinator"), str(record["what_waits"])


def _false_alarms(tellings: Sequence[Record], outages: Sequence[Span]) -> Iterator[str]:
    for each in tellings:
        if each["what"] == "storage_failed" and not any(_covers(outage, each) for outage in outages):
            yield f"storage_failed was told by {_who(each)} at {each['t']:.3f}, when the disk was sound"


def _covers(outage: Span, record: Record) -> bool:
    return Span(outage.begin, outage.end + _BACK_S).has(record["t"])


def _told_often(
    who: tuple[str, str], own: Sequence[Record], outages: Sequence[Span], coordinators: Sequence[Span]
) -> Iterator[str]:
    for outage in outages:
        count = sum(each["what"] == "storage_failed" and _covers(outage, each) for each in own)
        if count > 1 and not (who[0] == "coordinator" and _is_touched(outage, coordinators)):
            yield f"storage_failed was told {count} times by {who} in the outage from {outage.begin:.3f} on"


def _is_touched(outage: Span, coordinators: Sequence[Span]) -> bool:
    return any(each.begin <= outage.end + _BACK_S and each.end >= outage.begin for each in coordinators)


def _not_ended(who: tuple[str, str], own: Sequence[Record], coordinators: Sequence[Span]) -> Iterator[str]:
    """A node may be killed before it can tell, and a coordinator may lose its place."""
    is_hit = who[0] != "coordinator" or any(each.end >= own[-1]["t"] for each in coordinators)
    if own[-1]["what"] != "storage_back" and not is_hit:
        yield f"storage_back was never told by {who} after {own[-1]['t']:.3f}"


def _not_told(tellings: Sequence[Record], outages: Sequence[Span], coordinators: Sequence[Span]) -> Iterator[str]:
    for outage in outages:
        is_certain = outage.end - outage.begin >= _CERTAIN_S and not _is_touched(outage, coordinators)
        told = [each for each in tellings if each["what"] == "storage_failed" and _covers(outage, each)]
        if is_certain and not any(_who(each) == ("coordinator", "events") for each in told):
            yield f"the outage from {outage.begin:.3f} to {outage.end:.3f} was not told"


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
