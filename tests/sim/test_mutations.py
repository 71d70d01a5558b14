"""Each mutation is noticed within so many seeds, which shows that the checkers can fail.

The command `deadpool sim --mutations` runs all of them; those that take long are left out of a quick check.
"""

from __future__ import annotations

import pytest

from deadpool.protocol.permits import may_overwrite
from deadpool.sim.mutations import ALL, BY_NAME, Patch
from deadpool.sim.mutations.catching import catch

QUICK = (
    "1 overwrite the watermark",
    "2 no keep_from, watermark alone",
    "3 permit passes what is pending",
    "4 nothing dropped above resume",
    "7 watermark kept over generations",
    "9 newcomer without floor",
    "13 twice: lowest permit, versions passed first",
    "14 inventory not frozen",
    "19 twice: no term in generations or orders",
    "28 racks ignored",
    "36 process of another rank seated",
    "37 rehearsal of another rank goes on",
    "31 hangs not detected",
)


@pytest.mark.parametrize("name", QUICK)
def test_mutation_is_caught_soon(name: str) -> None:
    assert catch(name, limit=150).violation


@pytest.mark.parametrize("name", [mutation.name for mutation in ALL])
@pytest.mark.thorough
def test_mutation_is_caught(name: str) -> None:
    found = catch(name)
    assert found.violation, f"{name}: not caught within {found.seeds} seeds of {found.profile}"


def test_a_mutation_is_undone() -> None:
    from deadpool.protocol.agent import rank_slots

    with Patch() as patch:
        BY_NAME["1 overwrite the watermark"].apply(patch)
        assert rank_slots.may_overwrite is not may_overwrite
    assert rank_slots.may_overwrite is may_overwrite
