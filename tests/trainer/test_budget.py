"""The overhead budget of a trainer: what a step may wait for its capture."""

from __future__ import annotations

import pytest

from deadpool.protocol.permits import MAX_EVERY
from deadpool.trainer.capture.capture_tasks import WARM_UP_STEPS, Budget


def warm(share: float, step_s: float = 1.0) -> Budget:
    budget = Budget(share)
    for _ in range(WARM_UP_STEPS):
        budget.earn(step_s)
    return budget


def test_first_steps_wait_and_nothing_is_held_against_them():
    budget = Budget(0.001)
    for _ in range(WARM_UP_STEPS):
        assert budget.allowance_s() is None
        budget.spend(60.0)
        budget.earn(1.0)
    assert budget.allowance_s() == pytest.approx(0.001)


def test_first_step_earns_nothing_however_long_it_compiled():
    budget = Budget(0.001)
    budget.earn(600.0)
    budget.earn(1.0)
    assert budget.allowance_s() == pytest.approx(0.001)


def test_what_is_not_spent_is_saved_up_to_a_limit():
    budget = warm(0.001)
    for _ in range(99):
        budget.earn(1.0)
    assert budget.allowance_s() == pytest.approx(0.1)
    for _ in range(2 * MAX_EVERY):
        budget.earn(1.0)
    assert budget.allowance_s() == pytest.approx(0.001 * MAX_EVERY)


def test_debt_is_paid_back_before_the_next_wait():
    budget = warm(0.01)
    budget.spend(0.03)
    assert budget.allowance_s() == 0.0
    budget.earn(1.0)
    budget.earn(1.0)
    assert budget.allowance_s() == pytest.approx(0.0, abs=1e-9)
    budget.earn(1.0)
    assert budget.allowance_s() == pytest.approx(0.01)


def test_total_stall_stays_within_the_share():
    budget, stalled_s, steps = warm(0.001), 0.0, 10_000
    for _ in range(steps):
        allowance_s = budget.allowance_s()
        assert allowance_s is not None
        wait_s = min(0.05, allowance_s)  # each copy would take 50 ms longer than a step: most are given up
        budget.spend(wait_s)
        stalled_s += wait_s
        budget.earn(1.0)
    assert stalled_s <= 0.001 * (steps + 1)


def test_switched_off_there_is_no_limit():
    budget = warm(0.0)
    budget.spend(60.0)
    assert budget.allowance_s() is None


def test_at_the_widest_interval_there_is_no_limit():
    budget = warm(0.001)
    assert budget.allowance_s(MAX_EVERY) is None
    budget.spend(60.0, MAX_EVERY)
    assert budget.allowance_s(1) == pytest.approx(0.001)
