"""Which ranks of a group are connected while some have no process."""

from __future__ import annotations

from deadpool.trainer.shares.layout import present_members


def test_first_rank_is_stood_for_by_its_carrier():
    assert present_members([0, 1, 2, 3], {}) == [0, 1, 2, 3]
    assert present_members([0, 1, 2, 3], {2: 3}) == [0, 1, 3]
    assert present_members([0, 1, 2, 3], {0: 2, 3: 1}) == [2, 1], "frameworks broadcast from the first"


def test_group_without_the_carrier_of_a_missing_rank_is_of_no_use():
    assert present_members([0, 1], {1: 2}) is None
    assert present_members([2, 3], {1: 2}) == [2, 3]
