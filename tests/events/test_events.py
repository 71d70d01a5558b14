from __future__ import annotations

from contextlib import closing

import pytest

from deadpool.events.event import Event, causes, read_events, story
from deadpool.events.log import EventLog
from deadpool.events.story import PHASES, recoveries


def test_record_leaves_out_what_is_empty_and_keeps_its_own_time():
    event = Event(what="fault", cause="fault-1", rank=0, t=2.0, detail={"reason": "gone"})
    assert event.record(t=9.0) == {"t": 2.0, "what": "fault", "cause": "fault-1", "rank": 0, "reason": "gone"}
    assert Event(what="go").record(t=9.0) == {"t": 9.0, "what": "go"}


def test_log_is_read_in_order_of_time_without_its_torn_end(tmp_path):
    path = tmp_path / "events.jsonl"
    with closing(EventLog(path)) as log:
        log.start()
        log.write({"t": 2.0, "what": "late"})
        log.write({"t": 1.0, "what": "early"})
    path.write_text(path.read_text() + '{"t": 3.0, "wh')
    assert [record["what"] for record in read_events(path)] == ["early", "late"]


def test_log_of_a_job_that_never_was_is_empty(tmp_path):
    assert read_events(tmp_path / "absent") == []


def test_log_that_is_not_started_swallows_records(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.write({"what": "nothing"})
    assert not (tmp_path / "events.jsonl").exists()


def record(t: float, what: str, cause: str = "fault-1", **detail: object) -> dict[str, object]:
    return {"t": t, "what": what, "cause": cause, **detail}


RECOVERY = [
    record(0.0, "go", "start"),
    {"t": 1.0, "what": "signal_sent", "node": "n1"},
    record(1.5, "fault", node="n1", reason="gone", ranks=[1]),
    record(1.75, "fenced"),
    record(2.0, "planned", step=7, lost_steps=1),
    record(3.0, "prepared"),
    record(3.5, "go"),
    record(4.0, "resumed", rank=0),
    record(4.25, "resumed", rank=1),
]


def test_story_follows_one_cause():
    assert causes(RECOVERY) == ["start", "fault-1"]
    assert [r["what"] for r in story(RECOVERY, "start")] == ["go"]


def test_recovery_is_told_from_the_injection_to_the_last_resumed_rank():
    (recovery,) = recoveries(RECOVERY)
    assert (recovery.began, recovery.resume_step, recovery.lost_steps) == (1.0, 7, 1)
    assert tuple(recovery.phases_s) == PHASES
    assert recovery.phases_s["detect"] == 0.5
    assert recovery.first_step_s == 3.25
    assert sum(recovery.phases_s.values()) == pytest.approx(3.25)


def test_fault_seen_without_an_injection_begins_when_it_was_seen():
    (recovery,) = recoveries([r for r in RECOVERY if r["what"] != "signal_sent"])
    assert recovery.began == 1.5


def test_fault_that_a_new_coordinator_sees_late_begins_when_the_old_one_was_lost():
    seen_late = [{**r, "since_s": 1.25} if r["what"] == "fault" else r for r in RECOVERY if r["what"] != "signal_sent"]
    (recovery,) = recoveries(seen_late)
    assert recovery.began == 0.25 and recovery.phases_s["detect"] == 1.25 and recovery.first_step_s == 4.0


def test_recovery_begins_with_the_injection_that_led_to_it_and_no_other():
    injected = {"t": 1.25, "what": "injected", "rank": 1, "at": "clip", "step": 7}
    earlier = {"t": -1.0, "what": "signal_sent", "node": "n1"}, record(-0.5, "fault", "fault-0", node="n1", ranks=[1])
    undisturbed = [r for r in RECOVERY if r["what"] != "signal_sent"]
    (recovery,) = recoveries([*earlier, injected, *undisturbed])
    assert recovery.began == 1.25 and recovery.records[0] == injected
    (recovery,) = recoveries([*earlier, *undisturbed])
    assert recovery.began == 1.5


def test_hang_begins_with_the_last_injection_wherever_that_was():
    hang = [{**r, "ranks": [], "node": None} if r["what"] == "fault" else r for r in RECOVERY]
    (recovery,) = recoveries(hang)
    assert recovery.began == 1.0
    earlier = record(1.25, "fault", "fault-0", node="n1", ranks=[1], reason="gone")
    (recovery,) = recoveries([*hang[:2], earlier, *hang[2:]])
    assert recovery.began == 1.5, "that injection had led to something else"


def test_recovery_that_was_overtaken_by_another_fault_is_not_told_as_complete():
    assert recoveries([r for r in RECOVERY if r["what"] != "go"]) == []
