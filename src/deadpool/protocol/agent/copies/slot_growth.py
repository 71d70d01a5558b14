"""How many slots each rank has on this node: as many as its versions need until they are committed.

A user may say how many (`--slots N`): then there are exactly so many. Otherwise each rank begins with USUAL slots, and
gets further ones, a segment each, for one of these reasons:

- its versions take longer to be committed than its slots last (measured, as a median);
- its trainer found no free slot for a version, or a holder had none for a copy.

Further slots do not help where a version takes longer to be sent than the steps up to the next one: then the interval
has to be wider. And they never take more than ARENA_SHARE of the node's memory for all copies together, nor leave less
than FREE_SHARE of it to everything else. A slot that was not needed for long is given back, and so is one after the
other where memory becomes short.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from deadpool.protocol.agent.copies.slots import RankSlots, Slots
from deadpool.protocol.agent.phase import GenerationState
from deadpool.protocol.causes import Widening
from deadpool.protocol.messages import CaptureCostReport, SlotReport
from deadpool.protocol.seal import Geometry

LEAST = 2
"""One slot keeps the newest committed version while another one is written."""
USUAL = 3
"""The number that a rank begins with, where the memory is there."""
AT_MOST = 8
"""More than these would hold versions that are many steps old: a wider interval costs as little then."""
ARENA_SHARE = 0.5
FREE_SHARE = 0.1
SHORT_SHARE = 0.05
"""Below this share of memory that is left, slots are given back."""
UNUSED_FOR = 256
"""The number of versions in a row that have left two slots unused before one of them is given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMemory:
    """What the tightest of the machine's and the cgroups' limits gives in all, and what is left of it."""

    total_bytes: int
    available_bytes: int

    @property
    def is_short(self) -> bool:
        return self.available_bytes < SHORT_SHARE * self.total_bytes

    def left_for_slots(self, arena_bytes: int) -> int:
        """The bytes that further slots may take beside the `arena_bytes` that copies take already."""
        by_share = ARENA_SHARE * self.total_bytes - arena_bytes
        by_room = self.available_bytes - FREE_SHARE * self.total_bytes
        return max(0, int(min(by_share, by_room)))


def slots_needed(costs: CaptureCostReport) -> int:
    """How many slots last until a version is committed. 0: that is not known, or more of them would not help."""
    between_s = costs.every * costs.step_s
    if costs.commit_s is None or between_s <= 0 or costs.is_sent_too_slowly:
        return 0
    return 1 + math.ceil(costs.commit_s / between_s)


class SlotGrowth:
    def __init__(self, current: GenerationState, slots: Slots) -> None:
        self._current, self._slots = current, slots
        self._asked = 0  # 0: as many as are needed
        self._memory: NodeMemory | None = None
        self._taken_bytes = 0  # since memory was last looked at
        self._sent_too_slowly: set[int] = set()  # ranks whose link is the bottleneck
        self._refusals = 0  # of memory that there was by the last look
        self._looks_to_wait = 0

    def configure(self, asked: int) -> None:
        self._asked = asked
        self._slots.slots_per_segment = asked or LEAST

    # --- what is seen -------------------------------------------------------------------------------------------------

    def on_memory(self, memory: NodeMemory) -> None:
        self._memory, self._taken_bytes = memory, 0
        self._looks_to_wait = max(0, self._looks_to_wait - 1)
        if memory.is_short and not self._asked:
            for rank_slots, geometry in self._slots.in_use():
                self._give_one_back(rank_slots, geometry, least=LEAST)
        self._slots.release_given_back()

    def on_refused(self) -> None:
        """The node's shell knows of a limit that the look at memory does not show. The next attempt comes after twice
        as many looks as the one before."""
        self._refusals += 1
        self._looks_to_wait = 1 << min(self._refusals, 8)

    def on_costs(self, reports: Iterable[CaptureCostReport]) -> None:
        for costs in reports:
            too_slow = self._sent_too_slowly.add if costs.is_sent_too_slowly else self._sent_too_slowly.discard
            too_slow(costs.rank)
            if (needed := slots_needed(costs)) and costs.rank in self._slots.own:
                self._want(self._slots.own[costs.rank], needed)

    # --- what follows -------------------------------------------------------------------------------------------------

    def _want(self, rank_slots: RankSlots, count: int) -> None:
        rank_slots.wanted = max(rank_slots.wanted, min(count, AT_MOST))

    def advance(self) -> None:
        """Allocates one further slot for each rank that needs one, as far as there is memory."""
        if self._asked or not self._current.is_running:
            return
        for rank_slots, geometry in self._slots.in_use():
            self._decide(rank_slots, geometry)
            has = rank_slots.count(geometry)
            if not 0 < has < max(USUAL, rank_slots.wanted) or self._slots.is_allocating(rank_slots):
                continue
            if geometry.slot_bytes <= self._left_bytes() and not rank_slots.keep_again(geometry):
                self._taken_bytes += geometry.slot_bytes
                self._slots.allocate(rank_slots, geometry, 1)

    def _decide(self, rank_slots: RankSlots, geometry: Geometry) -> None:
        """Follows from what has happened to these slots since the last look."""
        if rank_slots.lacked and rank_slots.rank not in self._sent_too_slowly:
            self._want(rank_slots, rank_slots.count(geometry) + 1)
        rank_slots.lacked = False
        if rank_slots.uses >= UNUSED_FOR:
            if (rank_slots.least_unused or 0) >= 2:
                self._give_one_back(rank_slots, geometry, least=USUAL)
            rank_slots.uses, rank_slots.least_unused = 0, None

    def _left_bytes(self) -> int:
        """None may be taken before the memory was looked at."""
        if self._memory is None or self._memory.is_short or self._looks_to_wait:
            return 0
        left = self._memory.left_for_slots(self._slots.bytes_in_all)
        return min(left, self._memory.available_bytes - self._taken_bytes)

    def _give_one_back(self, rank_slots: RankSlots, geometry: Geometry, *, least: int) -> None:
        """Marks a slot that goes when it is free the next time, and is granted to nobody until then."""
        has = rank_slots.count(geometry)
        single = rank_slots.single_segments(geometry)
        if has > least and single:
            rank_slots.given_back.add(single[-1])
            rank_slots.wanted = has - 1

    # --- what is told -------------------------------------------------------------------------------------------------

    def report(self) -> SlotReport | None:
        """How many slots each rank of this node has, and how many it could have. None: no rank has any yet, or the
        coordinator knows it."""
        own = [rank_slots.count(geometry) for rank_slots, geometry in self._slots.own_in_use()]
        least = min(own, default=0)
        if self._asked or not least:
            return None
        round_bytes = sum(geometry.slot_bytes for _, geometry in self._slots.in_use())
        at_most = min(AT_MOST, least + self._left_bytes() // max(1, round_bytes))
        limit = Widening.SLOTS if at_most >= AT_MOST else Widening.MEMORY
        return SlotReport(least=least, at_most=max(least, at_most), limit=limit, arena_bytes=self._allowed_bytes())

    def _allowed_bytes(self) -> int:
        return int(ARENA_SHARE * self._memory.total_bytes) if self._memory is not None else 0
