"""How often nodes fail: a prior, counts that fade, racks."""

from __future__ import annotations

import pytest

from deadpool.protocol.coordinator.failure_rates import (
    DEVICE,
    HALF_LIFE_S,
    HANG,
    NODE,
    PRIOR_PER_S,
    TRAINER,
    FailureRates,
    kind_of,
)

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
        rates.note("n1", None, NODE, 0.0)
        first.append(rates.per_hour("n1", None, 0.0))
    assert first == sorted(first) and first[1] > 100 * first[0]
    later = rates.per_hour("n1", None, HALF_LIFE_S)
    assert later < first[-1] / 2
    rates.note("n2", None, NODE, 20 * HALF_LIFE_S)
    assert rates.nodes == ["n2"], "what has faded is forgotten"


def test_neighbours_in_the_rack_count_a_little():
    rates = FailureRates()
    rates.note("n1", "r1", NODE, 0.0)
    alone, beside, own = (rates.per_hour(*who, 0.0) for who in (("n2", "r2"), ("n2", "r1"), ("n1", "r1")))
    assert alone < beside < own / 3
    assert rates.per_hour("n3", None, 0.0) == alone, "a node without a rack has no neighbours"


def test_kinds_weigh_differently_and_are_counted():
    rates = FailureRates()
    rates.note("n1", None, TRAINER, 0.0)
    rates.note("n2", None, NODE, 0.0)
    assert rates.per_hour("n1", None, 0.0) < rates.per_hour("n2", None, 0.0)
    rates.note("n1", None, HANG, 0.0)
    assert rates.counts("n1", 1.0) == {TRAINER: 1, HANG: 1}


def test_a_stall_of_the_coordinator_ages_nothing():
    one, other = FailureRates(), FailureRates()
    for rates in (one, other):
        rates.note("n1", None, NODE, 100.0)
    other.discount_stall(5000.0)
    assert one.per_hour("n1", None, 200.0) == pytest.approx(other.per_hour("n1", None, 5200.0))


@pytest.mark.parametrize(
    ("reason", "named", "kind"),
    [
        ("link to node n1 lost", {"is_node": True}, NODE),
        ("killed by SIGKILL", {"is_node": False}, TRAINER),
        ("device: CUDA error", {"is_node": False}, DEVICE),
    ],
)
def test_kinds(reason, named, kind):
    assert kind_of(reason, **named) == kind
