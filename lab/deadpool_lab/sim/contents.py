"""What a slot of a simulated machine contains: a snapshot, or the parity of several."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from deadpool.protocol.coding import CodingGroup
from deadpool.protocol.identity import Version
from deadpool.protocol.seal import Digest
from deadpool_lab.sim.checking.history import State


@dataclass(frozen=True, slots=True)
class Content:
    """A whole snapshot. `replica` is None where that region was not sent to this node."""

    rank: int
    version: Version
    unique: int
    replica: int | None
    course: int  # the data that the rank has seen, which its record holds

    def digest(self) -> Digest:
        return Digest(record=self.course, unique=self.unique, replica=self.replica or 0)

    def damaged(self) -> Content:
        """A bit has flipped: in the record, if there is nothing else that only this rank has."""
        return replace(self, unique=self.unique ^ 1) if self.unique else replace(self, course=self.course ^ 1)


def content_of(rank: int, version: Version, state: State) -> Content:
    return Content(rank, version, state.unique, state.replica, state.course)


@dataclass(frozen=True, slots=True)
class ParityContent:
    """`rank` is the one under which its node keeps it."""

    group: CodingGroup
    member: int
    version: Version
    parts: dict[int, Content] = field(default_factory=dict)  # by rank
    flipped: bool = False

    @property
    def rank(self) -> int:
        return self.group.ranks[self.member]

    def with_part(self, content: Content) -> ParityContent:
        return replace(self, parts={**self.parts, content.rank: content})

    def damaged(self) -> ParityContent:
        return replace(self, flipped=not self.flipped)

    def digest(self) -> Digest:
        """Equal for equal parts, so that damage shows."""
        parts = tuple((rank, part.unique, part.replica, part.course) for rank, part in sorted(self.parts.items()))
        return Digest(record=0, unique=abs(hash((parts, self.flipped))) % 2**63, replica=0)
