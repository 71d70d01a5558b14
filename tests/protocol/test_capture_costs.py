"""What an agent makes of its trainers' figures."""

from __future__ import annotations

import pytest

from deadpool.protocol.agent.copies.capture_costs import ENOUGH, PENDING_AT_MOST, WAITS, CaptureCosts
from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import Generation, Schedule
from deadpool.protocol.messages import Missed, Stepped

FIRST = Generation(1, 1)


def stepped(
    costs: CaptureCosts, number: int, now: float = 0.0, stall_s: float = 0.0, copy_s: float | None = 0.1
) -> None:
    costs.on_stepped(0, Stepped(generation=FIRST, number=number, step_s=0.5, stall_s=stall_s, copy_s=copy_s), now)


def test_one_slow_copy_is_no_figure() -> None:
    costs = CaptureCosts()
    for number in range(1, ENOUGH):
        stepped(costs, number, stall_s=9.0)
    assert costs.of_ranks()[0].stall_s is None
    stepped(costs, ENOUGH, stall_s=9.0)
    assert costs.of_ranks()[0].stall_s == 9.0


def test_one_long_wait_may_be_chance() -> None:
    costs = CaptureCosts()
    for number in range(1, WAITS + 1):
        stepped(costs, number, stall_s=9.0 if number == 5 else 0.0)
    told = costs.of_ranks()[0]
    assert told.stall_s == 9.0 / WAITS and told.stall_at_least_s == 0.0
    for number in range(WAITS + 1, WAITS + 9):
        stepped(costs, number, stall_s=9.0)
    assert costs.of_ranks()[0].stall_at_least_s > 1.0, "half of them are none"


def test_figures_are_of_late() -> None:
    costs = CaptureCosts()
    for number in range(1, 50):
        stepped(costs, number, stall_s=9.0)
    for number in range(50, 50 + WAITS):
        stepped(costs, number, stall_s=0.0)
    assert costs.of_ranks()[0].stall_s == 0.0


def test_captures_given_up_count_with_what_they_would_have_cost() -> None:
    costs = CaptureCosts()
    for number in range(3):
        costs.on_missed(
            0, Missed(generation=FIRST, rank=0, number=number, cause=Miss.TOO_SLOW, reason="late", stall_s=0.3)
        )
        costs.on_missed(0, Missed(generation=FIRST, rank=0, number=number, cause=Miss.NO_SLOT, reason=""))
        stepped(costs, number + 1, copy_s=None, stall_s=0.001)
    assert costs.of_ranks()[0].stall_s == 0.3
    assert costs.ranks[0].stall_share == 0.002, "what it really cost"


def test_only_what_belongs_to_the_present_interval_counts() -> None:
    costs = CaptureCosts()
    for number in range(1, 10):
        stepped(costs, number, stall_s=9.0)
    costs.begin(Schedule(every=4, start=12))
    for number in range(10, 13):
        stepped(costs, number, stall_s=9.0)
    assert costs.of_ranks()[0].stall_s is None and costs.ranks[0].stall_share is None
    for number in range(13, 23):
        stepped(costs, number, stall_s=0.1 if number % 4 == 1 else 9.0)
    told = costs.of_ranks()[0]
    assert (told.every, told.stall_s) == (4, pytest.approx(0.1)), "captures of versions 12, 16 and 20"


def test_way_to_the_commit_is_measured_from_the_end_of_the_step() -> None:
    costs = CaptureCosts()
    for number in range(1, 4):
        stepped(costs, number, now=10.0 * number)
    for number in range(1, 4):
        costs.on_committed(number, now=10.0 * number + 1.5)
    assert costs.of_ranks()[0].commit_s == 1.5
    costs.on_committed(3, now=99.0)
    assert costs.of_ranks()[0].commit_s == 1.5, "each once"


def test_what_a_few_versions_took_is_not_certain_of_all() -> None:
    costs = CaptureCosts()
    for number in range(1, 9):
        stepped(costs, number, now=10.0 * number)
        took_s = 9.0 if number <= 3 else 1.0 + number / 100
        costs.on_sent(0, "n1", took_s)
        costs.on_committed(number, now=10.0 * number + took_s)
        told = costs.of_ranks()[0]
        if number < 3:
            assert told.commit_least_s is None and told.send_least_s is None
        elif number < 5:
            assert told.commit_s == told.send_s == 9.0 and told.commit_least_s == told.send_least_s == 0.0
            assert not told.is_sent_too_slowly, "slots still grow"
        else:
            assert told.send_least_s == pytest.approx(1.05 if number == 8 else 1.04)
            assert told.commit_least_s == pytest.approx(told.send_least_s)
            assert told.is_sent_too_slowly


def test_waits_of_three_captures_are_less_certain_than_of_many() -> None:
    costs = CaptureCosts()
    for number, stall_s in enumerate((0.0, 0.0, 0.3), 1):
        stepped(costs, number, stall_s=stall_s)
    assert costs.of_ranks()[0].stall_error_s == pytest.approx(0.43)


def test_versions_that_are_never_committed_are_forgotten() -> None:
    costs = CaptureCosts()
    for number in range(1, 1000):
        stepped(costs, number)
    assert len(costs.ranks[0].pending) == PENDING_AT_MOST


def test_steps_beside_a_copy_are_compared_with_steps_beside_none() -> None:
    costs = CaptureCosts()
    costs.begin(Schedule(every=4))
    for number in range(1, 200):
        beside = (number - 1) % 4 < 2
        news = Stepped(generation=FIRST, number=number, step_s=0.5, cycle_s=1.01 if beside else 1.0)
        costs.on_stepped(0, news, 0.0)
    overhead = costs.of_ranks()[0].overhead
    assert overhead is not None and abs(overhead.share - 0.005) < 1e-6 and overhead.error < 1e-6
    count = overhead.count
    for number in range(200, 240):  # what was not captured disturbs no step
        costs.on_missed(0, Missed(generation=FIRST, rank=0, number=number, cause=Miss.TOO_SLOW, reason="late"))
        costs.on_stepped(0, Stepped(generation=FIRST, number=number, step_s=0.5, cycle_s=1.0), 0.0)
    overhead = costs.of_ranks()[0].overhead
    assert overhead is not None and overhead.count == count


def overhead_with_misses(cause: Miss) -> object:
    """Six captured steps of 0.5 s and six of 0.4 s that have missed their captures for this cause, in turn."""
    costs = CaptureCosts()
    for number in range(600):
        is_missed = number % 12 >= 6
        if is_missed:
            costs.on_missed(0, Missed(generation=FIRST, rank=0, number=number, cause=cause, reason=""))
        cycle_s = 0.4 if is_missed else 0.5
        costs.on_stepped(0, Stepped(generation=FIRST, number=number + 1, step_s=cycle_s, cycle_s=cycle_s), 0.0)
    return costs.of_ranks()[0].overhead


def test_steps_without_a_capture_are_compared_only_if_the_script_wanted_none() -> None:
    """A capture that failed may have failed because the step was slow."""
    found = overhead_with_misses(Miss.SWITCHED_OFF)
    assert abs(found.share - 0.25) < 0.01  # type: ignore[attr-defined]
    assert overhead_with_misses(Miss.NO_SLOT) is None
