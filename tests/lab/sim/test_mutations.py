"""Each mutation is noticed within so many seeds, which shows that the checkers can fail.

The command `deadpool lab sim --mutations` runs all of them; those that take long are left out of a quick check.
"""

from __future__ import annotations

import pytest

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.permits import may_overwrite
from deadpool_lab.sim.mutations import ALL, BY_NAME, Patch
from deadpool_lab.sim.sweep import catch

QUICK = (
    "1 overwrite the watermark",
    "2 no keep_from, watermark alone",
    "3 permit passes what is pending",
    "4 nothing dropped above resume",
    "19 twice: no term in generations or orders",
    "28 racks ignored",
    "36 process of another rank seated",
    "31 hangs not detected",
    "53 guard at the cost of others",
    "61 memory of a carrier as evidence",
    "62 record of the carrier used",
    "63 half a replica goes on",
    "69 release outlives the fence",
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
    from deadpool.protocol.agent.copies import slots

    with Patch() as patch:
        BY_NAME["1 overwrite the watermark"].apply(patch)
        assert slots.may_overwrite is not may_overwrite
    assert slots.may_overwrite is may_overwrite


@pytest.mark.parametrize("name", [mutation.name for mutation in ALL])
def test_mutation_applies_to_the_code_as_it_is(name: str) -> None:
    """Only some are looked for in every check. The others must not have lost what they replace."""
    with Patch() as patch:
        BY_NAME[name].apply(patch)


def test_an_inherited_attribute_is_inherited_again() -> None:
    one, other = Version(Generation(1, 1), 3), Version(Generation(1, 2), 3)
    with Patch() as patch:
        BY_NAME["5 identity by number"].apply(patch)
        assert one == other
    assert one != other and "__eq__" not in vars(Version)
