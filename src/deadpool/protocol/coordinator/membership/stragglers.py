"""Which nodes are slow all the time, and by how much.

In synchronous training every rank's step takes as long as the slowest one's, so step times say nothing. What is
compared is how long each rank works at a step without waiting for others (`WorkTime`). A node counts by its busiest
rank. It is slow if that rank works FACTOR times as long as is usual on the other nodes, if this makes the step
longer by SHARE, and if it has been so for ROUNDS of heartbeats.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.identity import Layout
from deadpool.protocol.messages import WorkTime

FACTOR = 1.5
SHARE = 0.1
"""The share of the step time that the node has to work longer than usual."""
ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    node: str
    rank: int  # the busiest of the node
    own_s: float
    usual_s: float  # the median of the other nodes
    step_s: float

    @property
    def factor(self) -> float:
        return self.own_s / self.usual_s if self.usual_s > 0 else float("inf")

    @property
    def is_slow(self) -> bool:
        return self.factor >= FACTOR and self.own_s - self.usual_s >= SHARE * self.step_s

    @property
    def text(self) -> str:
        if self.usual_s <= 0:
            return f"works {self.own_s:.3f} s at a step, and the other nodes next to nothing"
        seconds = f"{self.own_s:.3f} s, their median is {self.usual_s:.3f} s"
        return f"works {self.factor:.1f} times as long at a step as the other nodes: {seconds}"

    def facts(self) -> dict[str, Any]:
        """Describes the straggler for status and events."""
        seconds = {"own_s": self.own_s, "usual_s": self.usual_s, "step_s": self.step_s}
        rounded = {name: round(value, 4) for name, value in seconds.items()}
        return {"factor": round(self.factor, 2) if self.usual_s > 0 else None, **rounded}


class StragglerWatch:
    def __init__(self, layout: Layout, out: Outbox) -> None:
        self._layout, self._out = layout, out
        self.work_times: dict[int, WorkTime] = {}
        self._rounds: dict[str, int] = {}  # in a row, in which the node was slow
        self.known: dict[str, Straggler] = {}  # those that were reported

    def forget(self) -> None:
        self.work_times.clear()
        self._rounds.clear()
        self.known.clear()

    def on_work_times(self, work_times: Iterable[WorkTime]) -> None:
        self.work_times.update({work.rank: work for work in work_times})

    def compare(self, seats: Sequence[str]) -> Straggler | None:
        """Called once per round of heartbeats. Compares if all ranks have reported; returns the slowest of the nodes
        that are slow all the time."""
        if len(self.work_times) == self._layout.world_size and len(seats) > 1:
            self._report(self._slow_now(seats))
        return self.slowest()

    def slowest(self) -> Straggler | None:
        return max(self.known.values(), key=lambda straggler: straggler.factor, default=None)

    def _slow_now(self, seats: Sequence[str]) -> dict[str, Straggler]:
        """Returns the slow nodes by name. Only suspects are compared closely: there may be thousands of nodes, and none
        of them slow.
        """
        work_times, ranks_at = self.work_times, self._layout.ranks_at
        own_s = [work_times[rank].own_s for rank in range(self._layout.world_size)]
        busiest_s = [max(own_s[ranks.start : ranks.stop]) for ranks in map(ranks_at, range(len(seats)))]
        ordered = sorted(busiest_s)
        least_usual_s = ordered[(len(ordered) - 2) // 2]  # whichever node is left out
        suspects = [position for position, busy_s in enumerate(busiest_s) if busy_s >= FACTOR * least_usual_s]
        found = [self._compare_node(seats[position], ranks_at(position), ordered) for position in suspects]
        return {each.node: each for each in found if each.is_slow}

    def _compare_node(self, node: str, ranks: range, ordered: list[float]) -> Straggler:
        """Compares a node with what is usual on the other nodes."""
        work = max((self.work_times[rank] for rank in ranks), key=lambda work: work.own_s)
        usual_s = _median_without(ordered, work.own_s)
        return Straggler(node=node, rank=work.rank, own_s=work.own_s, usual_s=usual_s, step_s=work.step_s)

    def _report(self, slow: dict[str, Straggler]) -> None:
        self._rounds = {node: self._rounds.get(node, 0) + 1 for node in slow}
        for node in [node for node in self.known if node not in slow]:
            del self.known[node]
            self._out.emit("straggler_recovered", node=node)
        for node, found in slow.items():
            if node not in self.known and self._rounds[node] >= ROUNDS:
                self._out.emit("straggler", node=node, rank=found.rank, reason=found.text, **found.facts())
            if node in self.known or self._rounds[node] >= ROUNDS:
                self.known[node] = found


def _median_without(ordered: list[float], value: float) -> float:
    """The median of all others. `value` is one of them; which of several equal ones is left out makes no difference."""
    left_out = bisect_left(ordered, value)

    def other(index: int) -> float:
        return ordered[index if index < left_out else index + 1]

    count = len(ordered) - 1
    return (other((count - 1) // 2) + other(count // 2)) / 2
