"""Which blocks each lost piece is rebuilt from, and what is left to read from which source. No I/O, no locks.

A piece is planned from the blocks that are there. If one of them turns out to be lost or damaged the piece is planned
anew, as the next attempt; what was read for an older attempt does not count.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from deadpool.errors import TransferError
from deadpool.protocol.features.coding.stripes import Place, Stripes
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import REGIONS, Piece, Region, extent_of, pieces_of
from deadpool.snapshot.erasure.block_source import BlockSource
from deadpool.snapshot.erasure.galois import Block, DataBlock, ParityBlock, Weights, weights
from deadpool.snapshot.erasure.parity_slot import Contribution

cached_weights = functools.lru_cache(maxsize=1024)(weights)
"""All rows of a stripe have the same, as long as the same blocks are there."""


@dataclass(eq=False, slots=True, kw_only=True)
class LostPiece:
    piece: Piece
    place: Place
    digest: int
    attempt: int = 0
    begun: int = 0  # the attempt of which something is in the slot
    done: bool = False
    parities: tuple[int, ...] = ()  # that this attempt uses
    pending: dict[Block, BlockSource] = field(default_factory=dict)
    damaged: set[BlockSource] = field(default_factory=set)  # their block of this row is damaged
    tried: set[tuple[int, ...]] = field(default_factory=set)  # parities that gave something else than was lost
    lock: threading.Lock = field(default_factory=threading.Lock)  # of its bytes in the slot


class Task(NamedTuple):
    """A block to read, and what it is multiplied by in the sum that gives the lost piece."""

    lost: LostPiece
    attempt: int
    block: Block
    weight: int
    piece: Piece | None  # what the source's own snapshot has there; None if the source has a parity

    @property
    def is_current(self) -> bool:
        return self.attempt == self.lost.attempt and not self.lost.done


class LostPieces:
    def __init__(self, group: RankGroup, member: int, catalog: Mapping[int, Contribution]) -> None:
        """`catalog` says what the snapshots of the group are, as far as a parity knows it."""
        self._group, self._member, self._catalog = group, member, catalog
        self._stripes = Stripes(group)
        lost = catalog[member]
        self.pieces = [
            LostPiece(piece=piece, place=self._stripes.place_of(member, piece.number), digest=lost.digests.at(piece))
            for piece in pieces_of(lost.geometry, lost.seal.extent)
            if piece.size
        ]
        self.left = len(self.pieces)
        self._extent = lost.seal.extent
        self._next_gap = {name: deque(each for each in self.pieces if each.piece.region == name) for name in REGIONS}
        self._sources: dict[tuple[int, bool], list[BlockSource]] = {}
        self._queues: dict[BlockSource, list[tuple[int, int, Task]]] = {}
        self._counter = itertools.count()

    def use(self, source: BlockSource) -> None:
        if source.is_parity or source.member in self._catalog:
            self._sources.setdefault((source.member, source.is_parity), []).append(source)
        self._queues[source] = []

    def plan_all(self) -> None:
        for lost in self.pieces:
            self.plan(lost)

    def plan(self, lost: LostPiece) -> None:
        """Begins a new attempt; TransferError if too few blocks are left."""
        stripe = lost.place.stripe
        data = self._stripes.data_members(stripe)
        own: dict[Block, Piece | None] = {
            DataBlock(member): self._piece_of(member, lost.place) for member in data if member in self._catalog
        }
        there = frozenset(block for block, piece in own.items() if piece is None or self._source_of(block, lost))
        lost.parities = self._choose_parities(lost, len(data) - len(there))
        blocks = there | {ParityBlock(index) for index in lost.parities}
        recipe: Weights = cached_weights(DataBlock(self._member), self._group.parities, data, blocks)
        lost.attempt += 1
        lost.pending = {}
        for block, weight in recipe.items():
            source = self._source_of(block, lost)
            if source is not None and own.get(block, True) is not None:
                lost.pending[block] = source
                task = Task(lost, lost.attempt, block, weight, own.get(block))
                heapq.heappush(self._queues[source], (lost.piece.number, next(self._counter), task))

    def _choose_parities(self, lost: LostPiece, count: int) -> tuple[int, ...]:
        there = [i for i in range(self._group.parities) if self._source_of(ParityBlock(i), lost) is not None]
        for choice in itertools.combinations(there, count):
            if choice not in lost.tried:
                return choice
        if lost.tried:
            raise TransferError(f"piece {lost.piece.number} is {'; '.join(map(self._name, sorted(lost.tried)))}")
        left = self._stripes.data_blocks - count + len(there)
        raise TransferError(
            f"piece {lost.piece.number} needs {self._stripes.data_blocks} blocks of its stripe, and {left} are left"
        )

    @staticmethod
    def _name(parities: tuple[int, ...]) -> str:
        return f"damaged when it is rebuilt with parity {', '.join(map(str, parities))}"

    def _piece_of(self, member: int, place: Place) -> Piece | None:
        """What a member has in a row. The lost one never counts as nothing: it is what is looked for."""
        return self._catalog[member].piece_at(place)

    def _source_of(self, block: Block, lost: LostPiece) -> BlockSource | None:
        if isinstance(block, DataBlock):
            key = (block.member, False)
        else:
            key = (self._stripes.parity_members(lost.place.stripe)[block.index], True)
        return next((each for each in self._sources.get(key, ()) if each not in lost.damaged), None)

    def leading_bytes(self, name: Region) -> int:
        """How many bytes of a region are rebuilt without a gap from its beginning."""
        waiting = self._next_gap[name]
        while waiting and waiting[0].done:
            waiting.popleft()
        return waiting[0].piece.offset if waiting else extent_of(self._extent, name)

    # --- what happens to blocks

    def next_task(self, source: BlockSource) -> Task | None:
        queue = self._queues[source]
        while queue:
            task = heapq.heappop(queue)[2]
            if task.is_current:
                return task
        return None

    def lose(self, source: BlockSource) -> None:
        """Plans everything anew that was to come from this source; TransferError if that cannot be."""
        for sources in self._sources.values():
            if source in sources:
                sources.remove(source)
        for lost in self.pieces:
            if not lost.done and source in lost.pending.values():
                self.plan(lost)

    def damaged(self, task: Task, source: BlockSource) -> None:
        task.lost.damaged.add(source)
        self.plan(task.lost)

    def wrong(self, lost: LostPiece) -> None:
        """All blocks were as their digests say, and their sum is not what was lost: a parity was damaged while it was
        made. Other parities are tried."""
        lost.tried.add(lost.parities)
        self.plan(lost)

    def finish(self, lost: LostPiece) -> list[BlockSource]:
        """The piece is rebuilt. Returns sources whose parity has been found wrong by that."""
        lost.done = True
        self.left -= 1
        suspects = {index for choice in lost.tried for index in choice} - set(lost.parities)
        found = [self._source_of(ParityBlock(index), lost) for index in sorted(suspects)]
        return [source for source in found if source is not None]
