"""What the data plane does with the effects of features: each is performed by exactly one."""

from __future__ import annotations

import pytest

from deadpool.control.shells import DataShell, DataShells
from deadpool.protocol.effects import EndWriter, FeatureEffect


class Performs(DataShell):
    def __init__(self) -> None:
        self.performed: list[FeatureEffect] = []

    def perform(self, effect: FeatureEffect) -> bool:
        self.performed.append(effect)
        return True


def test_the_feature_that_knows_an_effect_performs_it():
    knows = Performs()
    DataShells([DataShell(), knows]).perform(EndWriter(name="c"))
    assert knows.performed == [EndWriter(name="c")]


def test_effect_that_no_feature_performs_is_a_bug():
    with pytest.raises(AssertionError):
        DataShells([DataShell()]).perform(EndWriter(name="c"))
