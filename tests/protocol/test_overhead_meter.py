"""What protection costs, from step times that are made here with a known cost."""

from __future__ import annotations

import random

import pytest

from deadpool.protocol.agent.copies.capture_costs import ENOUGH_STEPS, OverheadMeter
from deadpool.protocol.identity import LEFT_OUT, LEFT_OUT_OF, LEFT_OUT_RARELY, Schedule


def measure(every, cost, steps, *, left_out_of=LEFT_OUT_OF, noise=0.003, drift=0.0, outliers=0.0, seed=1):
    """`cost` is added to the steps that run beside a copy, half of it to those that run beside what is still sent."""
    rng, schedule = random.Random(seed), Schedule(every=every, left_out_of=left_out_of)
    meter = OverheadMeter(schedule)
    for version in range(steps):
        step_s = 0.4 * (1 + drift * version / steps) * rng.gauss(1.0, noise)
        step_s *= 5.0 if rng.random() < outliers else 1.0
        step_s += 0.4 * cost * (schedule.captures(version) + 0.5 * schedule.captures(version - 1))
        meter.on_step(version, step_s)
    return meter.overhead()


@pytest.mark.parametrize("every", [1, 2, 4, 16])
@pytest.mark.parametrize("cost", [0.0, 0.004, 0.05])
def test_the_interval_contains_the_cost(every, cost):
    hits = 0
    for seed in range(20):
        found = measure(every, cost, 4000, seed=seed)
        true = 1.5 * cost / every
        hits += abs(found.share - true) <= found.error
        assert abs(found.share - true) <= 2.5 * found.error
    assert hits >= 16, "of 20, with an interval that holds in 95 of 100 cases"


@pytest.mark.parametrize("every", [1, 2])
def test_drift_is_no_cost(every):
    found = [measure(every, 0.0, 6000, drift=1.0, seed=seed) for seed in range(20)]
    assert sum(abs(each.share) <= each.error for each in found) >= 16, "of 20, as without a drift"


def test_a_few_steps_with_an_evaluation_make_it_less_certain_and_not_wrong():
    found = measure(1, 0.01, 20000, outliers=0.005)
    assert abs(found.share - 0.015) <= found.error and found.error < 0.005


def test_without_steps_beside_no_copy_nothing_is_known():
    assert measure(1, 0.01, 5000, left_out_of=0) is None
    assert measure(2, 0.01, 5000, left_out_of=0) is None
    assert measure(4, 0.01, 5000, left_out_of=0) is not None


def test_steps_for_which_the_script_switched_protection_off_are_compared():
    rng, meter = random.Random(1), OverheadMeter(Schedule(every=1))
    for version in range(2000):
        copies = [number % 12 < 6 for number in (version, version - 1)]
        if not copies[0]:
            meter.switched_off(version)
        meter.on_step(version, 0.4 * (rng.gauss(1.0, 0.003) + 0.01 * copies[0] + 0.005 * copies[1]))
    found = meter.overhead()
    assert found.count > 100 and abs(found.share - 0.015) <= found.error < 0.001


def test_too_few_comparisons_are_not_reported():
    assert measure(1, 0.01, LEFT_OUT_OF * (ENOUGH_STEPS - 1)) is None
    assert measure(1, 0.01, LEFT_OUT_OF * (ENOUGH_STEPS + 1)).count == ENOUGH_STEPS


def test_what_was_measured_belongs_to_an_interval_and_outlives_a_fence():
    schedule = Schedule(every=4)
    meter = OverheadMeter(schedule)
    for version in range(100):
        meter.on_step(version, 0.4)
    known = meter.overhead()
    meter.interrupt()
    meter.reschedule(Schedule(every=4, start=100))
    assert meter.overhead() == known
    meter.reschedule(Schedule(every=8, start=100))
    assert meter.overhead() is None


@pytest.mark.parametrize("every", [1, 2, 3, 4, 64])
def test_left_out_are_few_and_never_the_first(every):
    schedule = Schedule(every=every, left_out_of=LEFT_OUT_OF)
    versions = range(0, 20 * LEFT_OUT_OF * every, every)
    left_out = [version for version in versions if not schedule.captures(version)]
    assert len(left_out) == 20 * LEFT_OUT.get(every, 0) and 0 not in left_out
    assert schedule.captures(LEFT_OUT_OF * every)


def test_steps_of_a_busy_machine_are_no_cost_however_often_they_are_looked_at():
    """Each comparison is looked at with every heartbeat. What is certain may never exceed the budget by chance."""
    exceeded = surely = 0
    for seed in range(12):
        rng, schedule = random.Random(seed), Schedule(every=1, left_out_of=LEFT_OUT_OF)
        meter, looks = OverheadMeter(schedule), []
        for version in range(4000):
            meter.on_step(version, 0.4 * rng.lognormvariate(0.0, 0.2))
            if version % 20 == 0 and (found := meter.overhead()) is not None:
                looks.append(found)
        exceeded += any(each.at_least > 0.005 for each in looks)
        surely += any(each.surely > 0.005 for each in looks)
    assert exceeded > 0, "else this says nothing"
    assert surely == 0


def test_comparisons_count_on_where_only_what_is_left_out_changes():
    rng, schedule = random.Random(1), Schedule(every=1, left_out_of=LEFT_OUT_OF)
    meter = OverheadMeter(schedule)
    for version in range(2000):
        meter.on_step(version, 0.4 * rng.gauss(1.0, 0.003))
    before = meter.overhead()
    meter.reschedule(Schedule(every=1, start=2010, left_out_of=LEFT_OUT_RARELY))
    assert meter.overhead() == before is not None
    meter.reschedule(Schedule(every=2, start=2020, left_out_of=LEFT_OUT_OF))
    assert meter.overhead() is None


def test_left_out_rarely_is_less_than_one_in_three_hundred():
    often, rarely = (Schedule(every=1, left_out_of=each) for each in (LEFT_OUT_OF, LEFT_OUT_RARELY))
    assert sum(not often.captures(number) for number in range(61_000)) == 3000
    assert sum(not rarely.captures(number) for number in range(1_021_000)) == 3000
