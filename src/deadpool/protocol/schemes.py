"""How snapshots are protected: values that settings, plans and inventories carry.

A scheme keeps whole copies of each rank on other nodes, or puts ranks into groups whose members keep something for the
others together. What that is, and how many members bring back a lost one, the feature decides that makes groups
(`features/`); the cores know who is in a group, and how many of its members may be lost.
"""

from __future__ import annotations

import math
import re

from deadpool.protocol.identity import Layout, Value

MOST_MEMBERS = 32
MOST_PARITIES = 4
"""Up to these, every pattern of losses was tried on the coefficients (tests/snapshot/test_galois.py)."""
_SCHEME = re.compile(r"copies=(\d+)|rs\((\d+),\s*(\d+)\)")


class Scheme(Value, frozen=True, kw_only=True):
    """How snapshots are protected: by whole copies on so many other nodes, or by groups in which up to `data` snapshots
    share `parities` blocks."""

    copies: int = 0
    data: int = 0
    parities: int = 0

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """ValueError where `text` is neither copies=N nor rs(K,M)."""
        match = _SCHEME.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is neither copies=N nor rs(K,M)")
        copies, data, parities = match.groups()
        if copies is not None:
            return cls(copies=int(copies))
        data_blocks, parity_blocks = int(data), int(parities)
        if not (1 <= parity_blocks <= min(data_blocks, MOST_PARITIES) and data_blocks + parity_blocks <= MOST_MEMBERS):
            raise ValueError(f"{text!r}: rs(K,M) needs 1 <= M <= K, M <= {MOST_PARITIES} and K + M <= {MOST_MEMBERS}")
        return cls(data=data_blocks, parities=parity_blocks)

    @property
    def in_groups(self) -> bool:
        """Ranks are protected in groups, and not by copies of each."""
        return self.parities > 0

    @property
    def losses(self) -> int:
        """How many nodes may be lost at once, of a rank and its holders or of a group."""
        return self.parities or self.copies

    def group_count(self, positions: int) -> int:
        """Returns into how many groups so many positions are dealt out: as few as the scheme allows."""
        largest, smallest = self.data + self.parities, self.parities + 1
        return max(1, min(-(-positions // largest), positions // smallest))

    def held_share(self, positions: int) -> float:
        """How many snapshots a node keeps for others, for each of its own: fewer than one in groups that are large
        enough. Pieces are not counted, of which small snapshots have too few."""
        if not self.in_groups:
            return float(self.copies)
        smallest = positions // self.group_count(positions)
        return self.parities / (smallest - self.parities) if smallest > self.parities else math.inf

    def __str__(self) -> str:
        return f"rs({self.data},{self.parities})" if self.in_groups else f"copies={self.copies}"


class NodeGroup(Value, frozen=True, kw_only=True):
    """Positions whose ranks are protected together: those with the same place on their nodes form a group each."""

    positions: tuple[int, ...]
    parities: int

    def of(self, rank: int, layout: Layout) -> RankGroup:
        """The group that this rank is in."""
        place = layout.local_rank(rank)
        return RankGroup(ranks=tuple(layout.ranks_at(p)[place] for p in self.positions), parities=self.parities)


class RankGroup(Value, frozen=True, kw_only=True):
    """Ranks that are protected together, one per node. A member is the index of a rank in `ranks`."""

    ranks: tuple[int, ...]
    parities: int

    def __post_init__(self) -> None:
        """A group that arrives may claim anything; msgspec turns this error into a refusal of the message."""
        sizes_fit = 1 <= self.parities < len(self.ranks) <= MOST_MEMBERS and self.parities <= MOST_PARITIES
        if not sizes_fit or len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"no group: {self.ranks} with {self.parities} parities")

    @property
    def size(self) -> int:
        return len(self.ranks)

    def member_of(self, rank: int) -> int:
        return self.ranks.index(rank)

    def others(self, member: int) -> tuple[int, ...]:
        return tuple(other for other in range(self.size) if other != member)


Keeper = tuple[RankGroup, int]
"""A group, and the member that keeps something for the others."""
