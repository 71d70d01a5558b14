"""Which errors are injected into a job, and of which the rank has to be named."""

from __future__ import annotations

from collections import Counter

from deadpool.config.orders import ACTIVATION, ARENA, FLIPS, GRADIENT, RECEIVED, WIRE
from deadpool_lab.corruption.plan import SHAPES, draw


def test_the_same_seed_draws_the_same():
    shape = SHAPES["hsdp"]
    assert draw(shape, 12, 3) == draw(shape, 12, 3) != draw(shape, 12, 4)


def test_each_place_comes_as_often_as_any_other():
    errors = draw(SHAPES["3d"], 5 * len(FLIPS), 1)
    assert set(Counter(each.flips for each in errors).values()) == {5} and len({each.rank for each in errors}) > 4
    assert {each.in_redo for each in errors} == {True, False}


def test_ranks_that_exchange_activations_are_not_named_for_gradients():
    assert {flips for flips in FLIPS if not SHAPES["fsdp2"].names(flips)} == {RECEIVED}
    assert {flips for flips in FLIPS if not SHAPES["tp"].names(flips)} == {RECEIVED, ACTIVATION, GRADIENT}


def test_only_what_was_asked_for():
    errors = draw(SHAPES["fsdp2"], 8, 1, (ARENA, WIRE))
    assert Counter(each.flips for each in errors) == {ARENA: 4, WIRE: 4}
    assert not any(each.in_redo for each in errors), "a copy is not computed again"
