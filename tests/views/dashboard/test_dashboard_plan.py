"""The plan on the page follows from the job's own events, and costs little while nothing changes."""

from __future__ import annotations

from dashboard_records import T0, fault, node_name, progress, start

from deadpool.views.dashboard.history import JobHistory
from deadpool.views.dashboard.plan import _plan
from deadpool.views.dashboard.view import Losses, RunFacts, view

SEATS = [node_name(index) for index in range(4)]
RUNNING = [*start(4, 1, per_rack=2), *progress(0, 100)]
LOST = list(fault(1, T0 + 60, SEATS, position=1, spare=node_name(4), per_node=2, step=99))
LATER = list(progress(120, 400))


def plan_of(*records, now: float | None = None) -> dict:
    history = JobHistory(per_node=2)
    for record in records:
        history.add(record)
    return view(history, Losses(), RunFacts(name="job"), None, now=now or history.last_t)["plan"]


def test_plan_follows_from_the_faults_recoveries_and_size_of_the_job():
    calm, hit = plan_of(*RUNNING, *LATER), plan_of(*RUNNING, *LOST, *LATER)
    assert "from 0 faults" in calm["about"] and "from 1 fault in" in hit["about"]
    assert "means of 1 recoveries of this job" in hit["about"]
    for part in (calm, hit):
        assert "least per useful hour" in part["text"]
        assert [chart["name"] for chart in part["charts"]] == ["spares", "interval"]
        for chart in part["charts"]:
            assert len(chart["x"]) == len(chart["nines"]) and chart["advised"] in chart["x"] and chart["ticks"]
    spares = hit["charts"][0]["nines"]
    assert spares[0] < spares[1] < spares[-1]
    assert spares[0] < calm["charts"][0]["nines"][0]  # a job that has lost a node expects to lose more of them


def test_plan_says_what_one_spare_more_brings_where_the_price_alone_says_none():
    assert "one spare more: 99." in plan_of(*RUNNING, *LOST, *LATER)["text"]


def test_plan_is_not_made_before_a_step_time_is_known():
    assert plan_of(*RUNNING[:12])["charts"] == []


def test_plan_that_cannot_be_made_says_why():
    alone = plan_of(*start(1, 0), *progress(0, 300))
    assert alone["charts"] == [] and "nodes=1 cannot be used: give at least 2" in alone["text"]


def test_plan_is_made_anew_only_when_what_it_rests_on_has_changed():
    _plan.cache_clear()
    for tick in range(50):
        plan_of(*RUNNING, *LOST, *LATER, now=T0 + 210 + 0.4 * tick)
    assert _plan.cache_info().misses <= 6
