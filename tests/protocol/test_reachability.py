"""Which nodes try each other in a round."""

from __future__ import annotations

import pytest

from deadpool.protocol.coordinator.membership.reachability import cover, tried_by


@pytest.mark.parametrize("count", [2, 5, 33, 34, 35, 200, 201])
def test_those_that_a_node_tries_try_it_too(count):
    for draw in range(12):
        tried = [set(tried_by(position, count, draw)) for position in range(count)]
        for position, others in enumerate(tried):
            assert position not in others and len(others) <= 32
            assert all(position in tried[other] for other in others)


@pytest.mark.parametrize("count", [5, 34, 200, 201])
def test_every_pair_is_tried_after_some_rounds(count):
    rounds = count // 32 + 2
    tried = {other for draw in range(rounds) for other in tried_by(3, count, draw)}
    assert tried == set(range(count)) - {3}
    assert {2, 4} <= set(tried_by(3, count, 0)), "neighbours first"


def test_as_few_as_possible_are_given_up_and_silent_ones_first():
    star = {("a", "b"), ("a", "c"), ("a", "d")}
    assert cover(star) == ["a"]
    assert cover(star, first={"b", "c", "d"}) == ["b", "c", "d"], "they are silent, and a is not"
    assert cover({("a", "b"), ("b", "c"), ("d", "e")}) == ["b", "d"]
    assert cover({("a", "b")}, first={"b"}) == ["b"]
