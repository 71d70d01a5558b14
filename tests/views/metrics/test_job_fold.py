"""Figures of a job, folded from its events."""

from __future__ import annotations

import json
import time

import pytest
from records import progress, recovery, start

from deadpool.events.story import recoveries
from deadpool.views.metrics.folds import EventTail, JobFold


def folded(records):
    fold = JobFold()
    for record in records:
        fold.add(record)
    return fold


def test_recovery_has_the_phases_that_the_story_tells():
    records = [*start(), *recovery(200.0, number=1)]
    fold = folded(records)
    (told,) = recoveries(records)
    assert fold.recoveries.recoveries["node"] == fold.recoveries.faults["node"] == 1
    assert {phase: histogram.total for phase, histogram in fold.recoveries.phases.items()} == told.phases_s
    assert fold.recoveries.seconds.total == pytest.approx(9.0)


def test_recovery_counts_once_every_rank_has_done_a_step():
    records = [*start(), *recovery(200.0, number=1)]
    assert folded(records[:-1]).recoveries.recoveries["node"] == 0
    assert folded(records[:-1]).phase == "running"


def test_fault_in_mid_recovery_is_one_recovery_and_two_faults():
    first = recovery(200.0, number=1)[:3]
    fold = folded([*start(), *first, *recovery(203.0, number=2)])
    assert fold.recoveries.faults["node"] == 2 and fold.recoveries.recoveries["node"] == 1
    assert fold.recoveries.stopped_s == pytest.approx(11.0)  # from the first fault on


def test_fault_before_every_rank_has_resumed_does_not_swallow_the_recovery_before():
    first = recovery(200.0, number=1)[:-1]
    fold = folded([*start(), *first, *recovery(220.0, number=2)])
    assert fold.recoveries.recoveries["node"] == 2


def test_goodput_is_what_is_left_of_the_time():
    steps = [0, 0, 0, 0, 0, 0, 0, 10] + [0] * 8
    records = [
        *start(98.0),
        progress(110.0, step=10, counts=steps, seconds=10.0),
        *recovery(150.0, number=1, lost_steps=2),
    ]
    fold = folded([*records, progress(200.0, step=40)])
    assert fold.lost_s() == pytest.approx(8.0 + 2 * 1.0)  # stood still until go, then two steps of a second again
    assert fold.goodput() == pytest.approx(0.9)


def test_goodput_falls_while_a_recovery_is_under_way():
    running = [*start(98.0), progress(149.0, step=10)]
    stands = [recovery(150.0, number=1)[0], {"t": 200.0, "what": "awaiting_spare", "reason": "", "cause": "fault-1"}]
    assert folded(running).goodput() == 1.0
    assert folded([*running, *stands]).goodput() == pytest.approx(0.5)
    assert folded([*running, *stands]).phase == "waiting"


def test_steps_that_are_computed_again_are_counted_once():
    records = [*start(), progress(110.0, step=12), *recovery(120.0, number=1, lost_steps=2, step=10)]
    again = progress(130.0, step=11)
    assert folded([*records, again]).steps == 12
    assert folded([*records, again, progress(140.0, step=13)]).steps == 13


def test_what_was_lost_is_told_apart():
    fold = JobFold()
    kinds = [{"ranks": [1]}, {"ranks": [1], "rank": 1}, {"ranks": []}]
    for number, lost in enumerate(kinds):
        fold.add({"t": float(number), "what": "fault", "cause": f"fault-{number}", "reason": "", **lost})
    fold.add({"t": 9.0, "what": "handover", "cause": "drain-4", "ranks": [0], "node": "n0", "reason": ""})
    fold.add({"t": 9.5, "what": "reconfiguration", "cause": "protection-5", "step": 7, "reason": ""})
    for number, kind in enumerate(("corruption", "audit")):
        fold.add({"t": 10.0 + number, "what": "fault", "cause": f"fault-{6 + number}", "reason": "", "kind": kind})
    once = ("node", "trainer", "hang", "drain", "protection", "corruption", "audit")
    assert fold.recoveries.faults == dict.fromkeys(once, 1)


def test_recovery_after_a_takeover_is_lost_time_though_no_fault_was_seen():
    took_over = {"t": 200.0, "what": "took_over", "term": 2, "running": False, "nodes": []}
    go = {"t": 205.0, "what": "go", "cause": "term-2", "generation": "2.3"}
    assert folded([*start(), took_over]).phase == "recovering"
    fold = folded([*start(), took_over, go])
    assert fold.recoveries.stopped_s == 5.0 and sum(fold.recoveries.faults.values()) == 0
    assert folded([*start(), took_over | {"running": True}]).phase == "running"


def test_four_thousand_ranks_fold_fast():
    """Per event as with few ranks: each is looked at once."""
    few, many = recovery(200.0, number=1, ranks=64), recovery(200.0, number=1, ranks=4096)
    assert folded([*start(), *many]).recoveries.recoveries["node"] == 1
    of_few, of_many = (least_cpu_s(lambda each=each: folded([*start(), *each])) for each in (few, many))
    assert of_many < 320 * of_few  # 64 times as many events; 4096 times if quadratic


def least_cpu_s(work) -> float:
    """Of several attempts: what else the machine does only adds to it."""
    took = []
    for _ in range(5):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def test_log_is_read_on_and_whole_lines_only(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert list(tail.read()) == []
    path.write_text(json.dumps({"t": 1.0, "what": "go"}) + "\n" + '{"t": 2.0, "wh')
    assert [record["what"] for record in tail.read()] == ["go"]
    with path.open("a") as file:
        file.write('at": "fault"}\nnot JSON\n' + json.dumps({"t": 3.0, "what": "left"}) + "\n")
    assert [record["what"] for record in tail.read()] == ["fault", "left"]
    assert list(tail.read()) == []
