"""How often nodes fail: a prior, counts that fade, racks."""

from __future__ import annotations

import pytest

from deadpool.protocol.causes import FaultKind
from deadpool.protocol.coordinator.protection.failure_rates import HALF_LIFE_S, PRIOR_PER_S, FailureRates

DAY_S = 86400.0


def test_without_failures_the_prior_counts_and_then_time():
    rates = FailureRates()
    rates.begin(0.0)
    assert rates.per_hour("n1", None, 0.0) == pytest.approx(3600 * PRIOR_PER_S)
    assert rates.per_hour("n1", None, 10 * DAY_S) < 3600 * PRIOR_PER_S


def test_failures_add_up_and_fade():
    rates = FailureRates()
    first = [rates.per_hour("n1", None, 0.0)]
    for _ in range(3):
        rates.note("n1", None, FaultKind.NODE, 0.0)
        first.append(rates.per_hour("n1", None, 0.0))
    assert first == sorted(first) and first[1] > 100 * first[0]
    later = rates.per_hour("n1", None, HALF_LIFE_S)
    assert later < first[-1] / 2
    rates.note("n2", None, FaultKind.NODE, 20 * HALF_LIFE_S)
    assert rates.nodes == ["n2"], "what has faded is forgotten"


def test_neighbours_in_the_rack_count_a_little():
    rates = FailureRates()
    rates.note("n1", "r1", FaultKind.NODE, 0.0)
    alone, beside, own = (rates.per_hour(*who, 0.0) for who in (("n2", "r2"), ("n2", "r1"), ("n1", "r1")))
    assert alone < beside < own / 3
    assert rates.per_hour("n3", None, 0.0) == alone, "a node without a rack has no neighbours"


def test_kinds_weigh_differently_and_are_counted():
    rates = FailureRates()
    rates.note("n1", None, FaultKind.TRAINER, 0.0)
    rates.note("n2", None, FaultKind.NODE, 0.0)
    assert rates.per_hour("n1", None, 0.0) < rates.per_hour("n2", None, 0.0)
    rates.note("n1", None, FaultKind.HANG, 0.0)
    assert rates.counts("n1", 1.0) == {"trainer": 1, "hang": 1}


def test_a_stall_of_the_coordinator_ages_nothing():
    one, other = FailureRates(), FailureRates()
    for rates in (one, other):
        rates.note("n1", None, FaultKind.NODE, 100.0)
    other.discount_stall(5000.0)
    assert one.per_hour("n1", None, 200.0) == pytest.approx(other.per_hour("n1", None, 5200.0))


@pytest.mark.parametrize("kind", FaultKind)
def test_every_kind_of_fault_counts(kind):
    rates = FailureRates()
    rates.note("n1", None, kind, 0.0)
    known = kind in (FaultKind.NODE, FaultKind.DEVICE, FaultKind.HANG)
    assert rates.counts("n1", 1.0) == {kind.value if known else "trainer": 1}
