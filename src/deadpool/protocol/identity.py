"""Generations and versions, the names of things that outlive messages. Values only.

A version number alone never identifies state: a job that rolled back computes version v a second time, and the two are
different objects. So state is named by the generation that computed it *and* its number, everywhere.
"""

from __future__ import annotations

from deadpool.protocol.structs import Value


class Generation(Value, frozen=True, order=True):
    """One assignment of ranks to nodes. The coordinator's term orders first, so that a deposed coordinator cannot name
    a newer generation than its successor (rule 2, generations are ordered by term)."""

    term: int
    n: int

    def next(self, term: int) -> Generation:
        """The next one, under a coordinator of that term."""
        return Generation(term, self.n + 1)

    def __str__(self) -> str:
        return f"{self.term}.{self.n}"

    @property
    def is_founding(self) -> bool:
        """The first of a job: its plan needs no fence, because no node holds a rank yet."""
        return self.n == FOUNDING


FOUNDING = 1
NO_GENERATION = Generation(0, 0)


class Version(Value, frozen=True):
    """State after `number` completed steps; `generation` is the one in which the last of them was computed."""

    generation: Generation
    number: int

    def __hash__(self) -> int:
        """Equal to the generated one, in one call: versions are keys of large dictionaries."""
        return hash((self.generation.term, self.generation.n, self.number))

    def __str__(self) -> str:
        return f"v{self.number}@{self.generation}"
