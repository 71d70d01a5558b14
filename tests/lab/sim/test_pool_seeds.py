"""The decisions of a pool in the seeded world: no machine is shared, no job waits while one could serve it."""

from __future__ import annotations

import pytest

from deadpool_lab.sim.mutations.mutation import Patch
from deadpool_lab.sim.pool.world import MUTATIONS, run_pool_seed

SEEDS, QUICK_SEEDS = 150, 60


def test_seeds() -> None:
    found = [run_pool_seed(seed) for seed in range(QUICK_SEEDS)]
    assert [violation for violation, _ in found if violation] == []
    assert sum(seats for _, seats in found) > 3 * QUICK_SEEDS


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_caught(name: str) -> None:
    with Patch() as patch:
        MUTATIONS[name](patch)
        assert any(run_pool_seed(seed)[0] for seed in range(SEEDS)), name


def test_a_seed_gives_the_same_story_again() -> None:
    assert run_pool_seed(7) == run_pool_seed(7)
