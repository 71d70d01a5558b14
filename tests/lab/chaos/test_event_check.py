"""A log of events that is not what the coordinator said is a problem, and so is an outage that is not told once."""

from __future__ import annotations

import json

import pytest

from deadpool_lab.chaos.checks import Span, log_problems, read_log, spans_of_loss, storage_problems

EVENTS = [{"t": float(t), "what": "progress", "step": t, "cause": None} for t in range(10)]
OUTAGE = Span(100.0, 120.0)


def said(events):
    """As a coordinator prints them: with who says it, and without what is empty."""
    return [
        {"process": "coordinator", "text": "words", **{k: v for k, v in event.items() if v is not None}}
        for event in events
    ]


def telling(t, what, node=None, waits="events"):
    return {"t": t, "what": f"storage_{what}", "node": node, "what_waits": waits, "reason": "full"}


def test_all_that_was_said_is_there_in_any_order():
    assert log_problems(list(reversed(EVENTS)), said(EVENTS), []) == []


def test_missing_event_is_named():
    (problem,) = log_problems(EVENTS[:4] + EVENTS[5:], said(EVENTS), [])
    assert "lacks 1 of 10 events that were said: progress of 4.000" in problem


def test_event_that_is_there_twice():
    (problem,) = log_problems([*EVENTS, EVENTS[3]], said(EVENTS), [])
    assert "more than once: ['progress']" in problem


def test_what_agents_say_is_told_by_the_coordinator_again():
    assert log_problems([], [{**each, "process": "agent"} for each in EVENTS], []) == []


def test_what_a_killed_coordinator_kept_in_memory_is_lost():
    lost = spans_of_loss([5.0], [])
    assert log_problems(EVENTS[:4] + EVENTS[7:], said(EVENTS), lost) == []
    assert len(log_problems(EVENTS[:3] + EVENTS[7:], said(EVENTS), lost)) == 1
    assert spans_of_loss([5.0], [Span(1.0, 8.0)]) == [Span(1.0, 6.0)], "it waited since the disk was full"
    assert spans_of_loss([15.0], [Span(1.0, 8.0)]) == [Span(14.0, 16.0)], "it was written when there was room"


def test_what_a_coordinator_said_is_lost_is_no_surprise():
    farewell = {"process": "coordinator", "t": 10.0, "text": "2 events are lost: the disk of run did not take them"}
    assert log_problems(EVENTS[:8], [*said(EVENTS), farewell], []) == []
    assert len(log_problems(EVENTS[:7], [*said(EVENTS), farewell], [])) == 1


def test_lines_that_are_cut_short_are_no_events(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in EVENTS) + '{"t": 1, "wha\n3\n')
    assert read_log(path) == EVENTS


def test_outage_that_is_told_once_by_each():
    log = [telling(t, what, node) for node in (None, "n1") for t, what in ((101.0, "failed"), (120.5, "back"))]
    assert storage_problems(log, [OUTAGE], []) == []


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ([], "was not told"),
        ([telling(101.0, "failed")], "storage_back was never told"),
        ([telling(90.0, "failed"), telling(101.0, "failed"), telling(121.0, "back")], "when the disk was sound"),
        ([telling(101.0, "failed"), telling(105.0, "failed"), telling(121.0, "back")], "was told 2 times"),
    ],
)
def test_outage_that_is_not_told_once(log, problem):
    (found,) = storage_problems(log, [OUTAGE], [])
    assert problem in found


def test_coordinator_that_took_over_tells_again_or_has_no_time_to():
    again = [telling(101.0, "failed"), telling(105.0, "failed"), telling(121.0, "back")]
    assert storage_problems(again, [OUTAGE], [Span(103.0, 103.0)]) == []
    assert storage_problems([], [OUTAGE], [Span(103.0, 103.0)]) == []


def test_two_outages_without_a_pause_are_one():
    log = [telling(101.0, "failed"), telling(141.0, "back")]
    assert storage_problems(log, [Span(121.0, 140.0), OUTAGE], []) == []
    assert len(storage_problems(log, [Span(125.0, 145.0), OUTAGE], [])) == 1
