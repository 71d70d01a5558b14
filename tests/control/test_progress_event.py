"""The `progress` event: what nodes count since they began, logged so that a reader may add it up."""

from __future__ import annotations

from deadpool.control.coordinator.progress import STEP_TIMES_FACT, ProgressReport, gap_s
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Deadlines
from deadpool.protocol.identity import Address, Layout, Schedule
from deadpool.protocol.inputs import FromAgent
from deadpool.protocol.messages import Join, Settings
from deadpool.views.metrics.folds import STEP_BUCKETS_S, StepTimes


def core_of(nodes: int) -> Coordinator:
    deadlines = Deadlines(node_s=9, fence_s=9, prepare_s=9, connect_s=9, spare_wait_s=9, hang_s=9)
    settings = Settings(layout=Layout(positions=nodes, per_node=1, holders=1), slots=2, heartbeat_s=1, unwind_s=4)
    core = Coordinator(CoordinatorConfig(settings=settings, deadlines=deadlines, schedule=Schedule(every=2)))
    for index in range(nodes + 1):
        join = Join(node=f"n{index}", incarnation="a", data=Address(host="h", port=1), spare=index >= nodes)
        core.step(FromAgent(node=join.node, message=join), now=0)
    return core


def facts(*, pid: int = 1, sent: int = 0, steps: int = 0) -> dict:
    times = StepTimes()
    for _ in range(steps):
        times.add(0, 0.5)
    return {"pid": pid, "bytes_pushed": sent, "push_gbps": 0.5, "arena_bytes": 7, STEP_TIMES_FACT: times.facts()}


def logged(report: ProgressReport, core: Coordinator, **nodes: dict) -> dict:
    return report.event(core, nodes).record(t=0.0)


def test_counts_are_those_since_the_last_event():
    core, report = core_of(2), ProgressReport(founds=True)
    first = logged(report, core, n0=facts(sent=100, steps=4), n1=facts(sent=50))
    assert (first["sent_bytes"], sum(first["step_counts"]), first["step_seconds"]) == (150, 4, 2.0)
    again = logged(report, core, n0=facts(sent=130, steps=5), n1=facts(sent=50))
    assert (again["sent_bytes"], sum(again["step_counts"]), again["step_seconds"]) == (30, 1, 0.5)
    assert (again["nodes"], again["spares"], again["arena_bytes"]) == (3, 1, 14)
    assert again["slowest_bytes_per_s"] == again["transfer_bytes_per_s"] == 5e8


def test_node_that_is_lost_takes_nothing_back_and_its_successor_counts_from_the_beginning():
    core, report = core_of(2), ProgressReport(founds=True)
    logged(report, core, n0=facts(sent=100, steps=4))
    moved = logged(report, core, n2=facts(sent=10, steps=2))
    assert (moved["sent_bytes"], sum(moved["step_counts"])) == (10, 2)


def test_agent_that_is_started_again_under_its_name_counts_anew():
    core, report = core_of(2), ProgressReport(founds=True)
    logged(report, core, n0=facts(pid=1, sent=100))
    assert logged(report, core, n0=facts(pid=2, sent=30))["sent_bytes"] == 30


def test_coordinator_that_takes_over_does_not_count_again_what_the_last_one_has_logged():
    core, report = core_of(2), ProgressReport(founds=False)
    assert logged(report, core, n0=facts(sent=100, steps=4))["sent_bytes"] == 0
    later = logged(report, core, n0=facts(sent=140, steps=6))
    assert (later["sent_bytes"], sum(later["step_counts"])) == (40, 2)


def test_before_any_node_has_told_anything_there_is_an_event_all_the_same():
    empty = logged(ProgressReport(founds=True), core_of(2), n0={})
    assert empty["sent_bytes"] == 0 and len(empty["step_counts"]) == len(STEP_BUCKETS_S) + 1
    assert empty["slowest_bytes_per_s"] is None


def test_figures_that_make_no_sense_count_as_nothing():
    for nonsense in (
        {"step_counts": [1], "step_seconds": 1.0},
        {"step_counts": "x" * 16, "step_seconds": 1.0},
        {"a": 1},
    ):
        event = logged(ProgressReport(founds=True), core_of(2), n0={STEP_TIMES_FACT: nonsense})
        assert sum(event["step_counts"]) == 0


def test_gaps_grow_with_the_age_of_the_job():
    assert [gap_s(age_s, 10.0) for age_s in (0.0, 60.0, 300.0, 86400.0)] == [1.0, 1.0, 5.0, 10.0]
    assert gap_s(0.0, 0.5) == 0.5
