"""`deadpool durable now`: which event answers a request."""

from __future__ import annotations

from typing import Any

from deadpool.cli.durable import answer_to_request


def event(what: str, name: str = "", **more: Any) -> dict[str, Any]:
    return {"what": what, **({"name": name} if name else {}), **more}


BEGUN, WRITTEN, FAILED = "checkpoint_begun", "checkpoint_written", "checkpoint_failed"


def test_write_that_was_under_way_is_no_answer():
    before = [event(BEGUN, "a"), event(WRITTEN, "a"), event(BEGUN, "b")]
    events = [*before, event(WRITTEN, "b"), event("progress"), event(BEGUN, "c")]
    assert answer_to_request(before, events) is None
    assert answer_to_request(before, [*events, event(WRITTEN, "c")]) == event(WRITTEN, "c")


def test_write_whose_coordinator_died_is_not_waited_for():
    before = [event(BEGUN, "lost")]
    answer = answer_to_request(before, [*before, event(BEGUN, "b"), event(WRITTEN, "b")])
    assert answer == event(WRITTEN, "b")


def test_failure_is_an_answer_but_not_that_of_a_search():
    searched = [event(FAILED, reason="checkpoints cannot be read")]
    assert answer_to_request([], searched) is None
    assert answer_to_request([], [*searched, event(FAILED, "a", reason="full")]) == event(FAILED, "a", reason="full")


def test_job_that_ends_writes_none():
    answer = answer_to_request([], [event("failed", reason="asked to stop")])
    assert answer is not None and answer["reason"] == "the job has ended (asked to stop)"
