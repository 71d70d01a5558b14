"""Names of things that outlive messages: generations and versions. Values only.

A version number alone never identifies state: a job that rolled back computes version v a second time, and the two are
different objects. So state is named by the generation it was born in *and* its number, everywhere.
"""

from __future__ import annotations

from deadpool.protocol.structs import Value


class Generation(Value, frozen=True, order=True):
    """Who holds which rank. Ordered by the coordinator's term first: a deposed one cannot outbid its successor."""

    term: int
    n: int

    def next(self, term: int) -> Generation:
        """Under a coordinator of that term, which comes after everything of a lower one."""
        return Generation(term, self.n + 1)

    def __str__(self) -> str:
        return f"{self.term}.{self.n}"

    @property
    def is_founding(self) -> bool:
        """The first of a job: its plan needs no fence, for nobody holds anything yet."""
        return self.n == FOUNDING


FOUNDING = 1
NO_GENERATION = Generation(0, 0)


class Version(Value, frozen=True):
    """State after `number` completed steps; `born` is the generation in which the last of them was computed."""

    born: Generation
    number: int

    def __hash__(self) -> int:
        """As the one that would be made, in one call: versions name things in large books."""
        return hash((self.born.term, self.born.n, self.number))

    def __str__(self) -> str:
        return f"v{self.number}@{self.born}"
