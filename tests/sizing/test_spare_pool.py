"""How often nodes are missing, against closed forms that can be worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from deadpool.sizing.failure_history import InterruptionRate
from deadpool.sizing.goodput import shortage

HOUR = 3600.0
LONG = 1e6 * HOUR


def repair(mtbf_h: float, away_h: float, kind: str = "repair") -> InterruptionRate:
    return InterruptionRate(name=kind, kind=kind, per_s=1 / (mtbf_h * HOUR), away_s=away_h * HOUR)


def test_one_node_without_a_spare_is_away_as_long_as_repairs_take():
    found = shortage(1, 0, 0, [repair(90, 10)], LONG)
    assert found.share == pytest.approx(0.1, rel=1e-3)
    assert found.missing == pytest.approx(0.1, rel=1e-3)


def test_two_nodes_with_a_spare_lack_one_when_two_of_three_are_away():
    p = 0.1
    found = shortage(2, 1, 0, [repair(90, 10)], LONG)
    assert found.share == pytest.approx(3 * p**2 * (1 - p) + p**3, rel=1e-3)
    assert found.missing == pytest.approx(3 * p**2 * (1 - p) + 2 * p**3, rel=1e-3)


def test_many_nodes_without_a_spare_are_all_there_with_the_poisson_probability():
    found = shortage(2048, 0, 0, [repair(10_000, 4)], LONG)
    assert 1 - found.share == pytest.approx(math.exp(-2048 * 4 / 10_004), rel=1e-2)


def test_racks_take_all_their_nodes():
    alone = shortage(8, 3, 0, [repair(900, 100, kind="rack")], LONG)
    racks = shortage(8, 3, 4, [repair(900, 100, kind="rack")], LONG)
    assert alone.share == 0.0
    assert racks.share == pytest.approx(1 - 0.9**3, rel=1e-3)  # 11 nodes stand in three racks; one is too much


def test_a_young_run_has_not_lost_many_yet():
    old, young = (shortage(64, 2, 0, [repair(1000, 100)], seconds) for seconds in (LONG, 24 * HOUR))
    assert young.share < old.share / 5


def test_more_spares_never_hurt():
    shares = [shortage(256, spares, 8, [repair(500, 12), repair(3000, 2, "rack")], LONG).share for spares in range(40)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(shares))
    assert shares[0] > 0.9 and shares[-1] < 0.01


def test_processes_that_die_take_no_node_away():
    assert shortage(64, 0, 0, [repair(1, 0, kind="process")], LONG).share == 0.0
