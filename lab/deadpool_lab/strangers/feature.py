"""What a feature is: a name, and a function that writes it into a builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deadpool_lab.strangers.builder import ScriptBuilder

Write = Callable[[ScriptBuilder], None]
Fits = Callable[[ScriptBuilder], bool]


def always(builder: ScriptBuilder) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Feature:
    """`weight` is relative among features of which one is chosen; of an option it is the chance that it is taken."""

    name: str
    write: Write
    weight: float = 1.0
    fits: Fits = always

    def into(self, builder: ScriptBuilder) -> None:
        builder.tag(self.name)
        self.write(builder)


def has(*traits: str) -> Fits:
    return lambda builder: set(traits) <= builder.traits


def lacks(*traits: str) -> Fits:
    return lambda builder: not set(traits) & builder.traits


def pick(features: Sequence[Feature], *names: str) -> list[Feature]:
    """Returns the features of these names."""
    found = [feature for feature in features if feature.name in names]
    assert len(found) == len(names), f"{names} are not all features of one family"
    return found


def choose(builder: ScriptBuilder, features: Sequence[Feature]) -> None:
    """One of those that fit."""
    fitting = [feature for feature in features if feature.fits(builder)]
    builder.rng.choices(fitting, [feature.weight for feature in fitting])[0].into(builder)


def sprinkle(builder: ScriptBuilder, features: Sequence[Feature]) -> None:
    """Each that fits, with its chance. A draw for each, so that one more feature changes no other's."""
    for feature in features:
        chance = builder.rng.random()
        if chance < feature.weight and feature.fits(builder):
            feature.into(builder)
