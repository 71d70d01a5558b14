"""Rates and phases from logs and events."""

from __future__ import annotations

import json

import pytest

from deadpool.errors import ConfigError
from deadpool.sizing.failure_history import FailureCounts, from_events, read_log
from deadpool.sizing.inputs import Inputs, Phases, measured

JOB = Inputs(nodes=100)


def test_a_csv_log_gives_rate_and_kinds(tmp_path):
    log = tmp_path / "failures.csv"
    rows = [f"2026-01-{day:02}T12:00:00,{'process' if day % 2 else 'repair'}" for day in range(1, 31)]
    log.write_text("time,kind\n" + "\n".join(rows))
    seen = read_log(log, JOB, None)
    assert seen.unexpected == 30
    assert seen.node_hours == pytest.approx(100 * 29 * 24)
    assert seen.mtbf_h == pytest.approx((6335 + 100 * 29 * 24) / 31)
    assert seen.shares()["process"] > 0.4
    assert sum(seen.shares().values()) == pytest.approx(1.0)


def test_json_lines_without_kinds_are_nodes_that_were_lost(tmp_path):
    log = tmp_path / "failures.jsonl"
    log.write_text("".join(json.dumps({"time": 3600.0 * hour}) + "\n" for hour in range(5)))
    seen = read_log(log, JOB, 10.0)
    assert seen.failures == {"node": 5}
    assert seen.node_hours == pytest.approx(24_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,kind\nyesterday,repair\n2026-01-01,repair\n", "time='yesterday' of failure 1"),
        ("time,kind\n1,gremlin\n2,repair\n", "kind='gremlin' of failure 1; give one of process"),
        ('{"time": 1}\n{"time":\n', "line 2 is not JSON"),
        ("time,kind\n1,repair\n", "give log_days too"),
    ],
)
def test_a_log_that_cannot_be_read_says_where(tmp_path, text, said):
    log = tmp_path / "failures"
    log.write_text(text)
    with pytest.raises(ConfigError, match=r"failure_log=.* cannot be used") as refused:
        read_log(log, JOB, None)
    assert said in str(refused.value)


def test_a_csv_that_excel_has_written_begins_with_a_mark(tmp_path):
    log = tmp_path / "failures.csv"
    log.write_bytes("\ufefftime,kind\r\n0,process\r\n86400,reset\r\n".encode())
    assert read_log(log, JOB, None).unexpected == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "Is a directory; give a CSV"),
        (lambda path: path.write_bytes(b"time\n\xff\xfe1\x00"), "it is no text in UTF-8"),
        (lambda path: None, "there is no such file"),
    ],
)
def test_what_is_no_text_is_refused_in_words(tmp_path, make, said):
    make(tmp_path / "failures.csv")
    with pytest.raises(ConfigError, match=rf"failure_log=.* cannot be used: {said}"):
        read_log(tmp_path / "failures.csv", JOB, None)


def test_the_interval_narrows_with_evidence_and_holds_the_estimate():
    few, many = FailureCounts(1000.0), FailureCounts(100_000.0)
    few.failures["node"], many.failures["node"] = 2, 200
    for seen in (few, many):
        low, high = seen.interval_h
        assert low < seen.mtbf_h < high
    assert few.interval_h[1] / few.interval_h[0] > 4
    assert many.interval_h[1] / many.interval_h[0] < 1.3


def test_the_interval_of_a_gamma_distribution_is_that_of_tables():
    """With 9 failures and the prior's one: chi-squared with 20 degrees of freedom, 10.85 and 31.41."""
    seen = FailureCounts(0.0)
    seen.failures["node"] = 9
    low, high = seen.interval_h
    assert 6335 / low == pytest.approx(31.41 / 2, rel=0.01)
    assert 6335 / high == pytest.approx(10.85 / 2, rel=0.01)


def job_events(detect_s: float = 2.0) -> list[dict]:
    seats, fault = ["a", "b", "c"], {"cause": "fault-1", "generation": "1.2"}
    return [
        {"t": 0.0, "what": "planned", "cause": "start", "step": 0, "lost_steps": 0, "seats": seats},
        {"t": 0.0, "what": "go", "cause": "start"},
        {"t": 100.0, "what": "signal_sent", "node": "b"},
        {"t": 100.0 + detect_s, "what": "fault", "node": "b", "ranks": [1], **fault},
        {"t": 103.0, "what": "fenced", **fault},
        {"t": 103.5, "what": "planned", "step": 9, "lost_steps": 1, "seats": seats, **fault},
        {"t": 107.5, "what": "prepared", **fault},
        {"t": 108.0, "what": "go", **fault},
        {"t": 120.0, "what": "resumed", "rank": 0, **fault},
        {"t": 3600.0, "what": "completed"},
    ]


def test_phases_come_from_recoveries_that_happened():
    phases = measured([("run", job_events())])
    assert phases.detect_node_s == pytest.approx(2.0)
    assert phases.unwind_s == pytest.approx(1.0)
    assert (phases.plan_s, phases.prepare_s, phases.connect_s) == pytest.approx((0.5, 4.0, 0.5))
    assert "1 recoveries in run" in phases.source


def test_a_fault_that_nobody_injected_says_nothing_of_its_detection():
    events = [record for record in job_events() if record["what"] != "signal_sent"]
    assert measured([("run", events)]).detect_node_s == Phases().detect_node_s


def test_a_run_without_a_recovery_has_no_phases():
    with pytest.raises(ConfigError, match="no completed recovery"):
        measured([("run", job_events()[:2])])


def test_a_jobs_own_events_give_its_rate_and_size():
    seen = from_events([("one", job_events()), ("two", job_events())])
    assert seen.nodes == 3
    assert seen.node_hours == pytest.approx(6.0, rel=0.05)  # a little less: the last event that counts
    assert seen.failures["node"] == 2
