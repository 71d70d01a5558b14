"""What went wrong since a version was last completed, and whether to go on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from deadpool.protocol.coordinator.commits import Commits

FUTILE_LIMIT = 5
"""Recoveries in a row without one new completed version, after which going on would be a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """A fault, as the report of a job that got nowhere names it."""

    cause: str
    reason: str
    node: str | None
    ranks: tuple[int, ...]

    @property
    def words(self) -> str:
        where = f"{_named('rank', self.ranks)}{f' on {self.node}' if self.node else ''}: " if self.ranks else ""
        return where + self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An error of the script or its device that is not to be tried again as it is."""

    words: str
    follows_node: bool  # it has only come on this one node: another one may do


class Setbacks:
    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._commit_count = 0  # as of the last fault
        self._futile = 0
        self._faults: list[Setback] = []
        self._error: tuple[str, str] | None = None  # what, on which node

    def is_futile(self, fault: Setback, *, one_more: bool) -> bool:
        """`one_more`: it is an attempt of its own. A node that is lost in a recovery is part of the same disaster,
        unless it is the same node again: then it has come back, and this could go on for ever."""
        self._forget_the_overcome()
        again = fault.node is not None and any(fault.node == earlier.node for earlier in self._faults)
        self._futile += one_more or again
        self._faults.append(fault)
        return self._futile > FUTILE_LIMIT

    def found(self, node: str, rank: int, found: str) -> None:
        """Who was at fault for the hang that is dealt with."""
        if self._faults and not self._faults[-1].ranks:
            hang = self._faults[-1]
            self._faults[-1] = replace(hang, node=node, ranks=(rank,), reason=f"hung, {found}")

    def bug(self, error: str, node: str) -> Verdict | None:
        """What never got anywhere, or fails the same way once more, is a bug of the script's, not an accident."""
        self._forget_the_overcome()
        before, self._error = self._error, (error, node)
        if self._commits.permit.watermark is None:
            return Verdict(words="before its first snapshot", follows_node=False)
        if before is not None and before[0] == error:
            return Verdict(words="again in the same way", follows_node=before[1] == node)
        return None

    def report(self) -> str:
        """For whoever has to find out why: which faults, which ranks, what now."""
        hits = Counter(rank for fault in self._faults for rank in fault.ranks)
        often = [rank for rank, count in sorted(hits.items()) if count > 1]
        suspects = f"; hit more than once: {_named('rank', often)}" if often else ""
        faults = "; ".join(f"{count} times: {words}" if count > 1 else words for words, count in self._counted())
        return (
            f"no progress: step {self.step} was begun again {FUTILE_LIMIT} times, and no version after it was "
            f"completed; faults: {faults}{suspects}; what now: read these ranks' logs, mend what fails there or leave "
            "the node out, and start again"
        )

    def facts(self) -> dict[str, Any]:
        """The same for the event log."""
        return {
            "faults": [f"{fault.cause}: {fault.words}" for fault in self._faults],
            "ranks": sorted({rank for fault in self._faults for rank in fault.ranks}),
            "nodes": sorted({fault.node for fault in self._faults if fault.node is not None}),
        }

    def _counted(self) -> list[tuple[str, int]]:
        return list(Counter(fault.words for fault in self._faults).items())

    @property
    def step(self) -> int:
        """That is tried again and again."""
        watermark = self._commits.permit.watermark
        return watermark.number if watermark is not None else 0

    def _forget_the_overcome(self) -> None:
        if self._commits.count != self._commit_count:
            self._commit_count, self._futile, self._error = self._commits.count, 0, None
            self._faults.clear()


def _named(what: str, numbers: tuple[int, ...] | list[int]) -> str:
    return f"{what}{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers))}"
