"""What an integration refuses, as values: each integration has one enumeration of `Refusals` in its `refusals.py`.

`Refused` is raised with one of its members, and with the sentence that the user reads. The pages of the frameworks list
the same members with the same reasons, and tests/docs/test_refusals.py holds one against the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from deadpool.errors import ConfigError


class Why(Enum):
    """Tells refusals that stay from those that work may end."""

    INHERENT = "inherent"
    """A step does what cannot be put back, or nobody knows where steps begin."""

    NOT_BUILT = "not built"
    """The state could be captured, and nobody has written that yet."""

    UNTRIED = "never tried"
    """This may work, and no fault was tried with it."""

    MISUSE = "wrong call"
    """The call cannot mean anything. The pages do not count these."""


@dataclass(frozen=True, slots=True)
class RefusedUse:
    """`what` and `reason` are the words of the page."""

    what: str
    why: Why
    reason: str


class Refusals(Enum):
    """The base of all enumerations; the value of each member is a RefusedUse."""

    @property
    def refusal(self) -> RefusedUse:
        value: RefusedUse = self.value
        return value


class Refused(ConfigError):
    """An integration cannot protect what the script asks for."""

    def __init__(self, refusal: Refusals, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal
