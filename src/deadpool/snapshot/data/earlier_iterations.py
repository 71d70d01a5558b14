"""What this process remembers of the iterations of a loader that it has begun, by their numbers.

A rank that returns to an earlier step finds here whether the script begins one of them again, whether that can be
done exactly, and what samplers and data held then.
"""

from __future__ import annotations

from deadpool.snapshot.data.generators import Generators
from deadpool.snapshot.data.iteration import Target
from deadpool.snapshot.data.kept_batches import Draw, Draws
from deadpool.snapshot.data.order import Start

_REMEMBERED = 64


class EarlierIterations:
    def __init__(self) -> None:
        self._left_at: dict[int, tuple[int, bool]] = {}  # of an iteration, when the next one began
        self._drew: dict[int, Generators | None] = {}  # after iter(); None: they were the same at the first batch
        self._starts: dict[int, Start] = {}
        self._newest: tuple[Target, Draws] | None = None  # its end, and its draws

    def left(self, number: int, at: tuple[int, bool]) -> None:
        self._left_at[number] = at

    def keep(self, end: Target, draws: Draws) -> None:
        """The batches of an iteration stay for a rank that returns to it from the next one."""
        self._newest = end, draws

    def began(self, number: int, start: Start) -> None:
        self._starts[number] = start
        self._drew[number] = Generators.now()
        for notes in (self._left_at, self._drew, self._starts):
            notes.pop(number - _REMEMBERED, None)

    def reached(self, number: int, start: Start) -> None:
        """Another process had begun it."""
        self._starts[number] = start

    def draws_first(self, number: int, before: Generators) -> None:
        if self._drew.get(number) == before:
            self._drew[number] = None

    # --- a rank returns ----------------------------------------------------------------------------------------------

    def was_left_at(self, number: int, at: tuple[int, bool]) -> bool:
        """Whether the script made another iterator here, and has not used this one since."""
        return self._left_at.get(number) == at

    def begins_alike(self, numbers: range) -> bool:
        """Whether each of them, begun again, would draw what it drew: its first batch came at once."""
        return all(self._drew.get(number) is None for number in numbers)

    def start_of(self, number: int) -> Start | None:
        return self._starts.get(number)

    def kept_since(self, target: Target) -> tuple[list[Draw], Draws, Target] | None:
        """Returns the draws of the newest iteration from the target on, all that are kept of it, and its end. None: the
        target is in another one, or not all of them are there."""
        if self._newest is None or self._newest[0].number != target.number:
            return None
        end, draws = self._newest
        kept = draws.since(target.drawn)
        return None if kept is None else (kept, draws, end)
