"""What a feature is: a name, and a function that writes it into a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deadpool_lab.strangers.draft import Draft

Write = Callable[[Draft], None]
Fits = Callable[[Draft], bool]


def always(draft: Draft) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Feature:
    """`weight` is relative among features of which one is chosen; of an option it is the chance that it is taken."""

    name: str
    write: Write
    weight: float = 1.0
    fits: Fits = always

    def into(self, draft: Draft) -> None:
        draft.tag(self.name)
        self.write(draft)


def has(*traits: str) -> Fits:
    return lambda draft: set(traits) <= draft.traits


def lacks(*traits: str) -> Fits:
    return lambda draft: not set(traits) & draft.traits


def pick(features: Sequence[Feature], *names: str) -> list[Feature]:
    """Returns the features of these names."""
    found = [feature for feature in features if feature.name in names]
    assert len(found) == len(names), f"{names} are not all features of one family"
    return found


def choose(draft: Draft, features: Sequence[Feature]) -> None:
    """One of those that fit."""
    fitting = [feature for feature in features if feature.fits(draft)]
    draft.rng.choices(fitting, [feature.weight for feature in fitting])[0].into(draft)


def sprinkle(draft: Draft, features: Sequence[Feature]) -> None:
    """Each that fits, with its chance. A draw for each, so that one more feature changes no other's."""
    for feature in features:
        chance = draft.rng.random()
        if chance < feature.weight and feature.fits(draft):
            feature.into(draft)
