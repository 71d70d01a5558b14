"""Whether the decisions of a run went back and forth, from its events."""

from __future__ import annotations

from deadpool_lab.chaos.checks import decisions, oscillations

DWELL_S = 60.0


def change(t, node, value):
    return {"t": t, "what": "protection", "node": node, "change": value, "reason": "for a reason"}


def test_changes_that_stay_for_their_time_are_fine():
    events = [change(0, "n1", "guarded"), change(61, "n1", "unguarded"), change(122, "n1", "guarded")]
    assert oscillations(events, DWELL_S) == []


def test_change_that_is_taken_back_soon():
    events = [change(0, "n1", "guarded"), change(30, "n1", "unguarded")]
    assert oscillations(events, DWELL_S) == ["n1 was unguarded again 30 s after it was guarded"]


def test_node_that_is_evicted_after_it_was_guarded_does_not_go_back():
    assert oscillations([change(0, "n1", "guarded"), change(30, "n1", "evicted")], DWELL_S) == []


def test_too_many_changes():
    events = [change(t, f"n{t}", "guarded") for t in range(7)]
    assert oscillations(events, DWELL_S) == ["protection has changed 7 times within 6 s"]


def test_each_coordinator_has_a_budget_of_its_own():
    half = [change(t, f"n{t}", "guarded") for t in range(4)]
    again = [change(t + 10, f"n{t}", "guarded") for t in range(4)]
    assert oscillations([*half, {"t": 9, "what": "took_over"}, *again], DWELL_S) == []


def test_only_decisions_are_listed():
    events = [{"t": 1, "what": "go"}, change(2, "n1", "guarded"), {"t": 3, "what": "eviction", "node": "n1", "x": 1}]
    assert [each["what"] for each in decisions(events)] == ["protection", "eviction"]
    assert "x" not in decisions(events)[1]
