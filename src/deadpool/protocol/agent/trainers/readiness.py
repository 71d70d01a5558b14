"""What the ranks of a node have reported since the plan, so that the coordinator hears it once per node.

If each rank spoke for itself, a coordinator of thousands of nodes would have most of its work with these two reports.
Where some ranks of a node are late, the heartbeat sends what the others have reported, so that the coordinator can
name the ranks that it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from msgspec.structs import replace

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.messages import Connected, NodeConnected, NodePrepared, Plan, Prepared

Report = TypeVar("Report", Prepared, Connected)


class Gathered(Generic[Report]):
    """What ranks have reported and the coordinator was not told yet."""

    def __init__(self, ranks: frozenset[int] = frozenset()) -> None:
        self._missing = set(ranks)
        self._untold: list[Report] = []

    def add(self, report: Report) -> bool:
        """Returns whether this was the last rank."""
        self._missing.discard(report.rank)
        self._untold.append(report)
        return not self._missing

    def take(self) -> list[Report]:
        untold, self._untold = sorted(self._untold, key=lambda report: report.rank), []
        return untold


class Readiness:
    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._store_rank: int | None = None
        self.forget()

    def forget(self) -> None:
        """Forgets, at a fence, what was gathered: it is of a generation that is over."""
        self._prepared, self._connected = Gathered[Prepared](), Gathered[Connected]()

    def begin(self, plan: Plan) -> None:
        ranks = frozenset(order.rank for order in plan.orders)
        self._store_rank = plan.store_rank
        self._prepared, self._connected = Gathered[Prepared](ranks), Gathered[Connected](ranks)

    def on_prepared(self, prepared: Prepared, further: Iterable[int] = ()) -> None:
        """`further`: ranks whose work the same process does."""
        for rank in further:
            self._prepared.add(replace(prepared, rank=rank))
        if self._prepared.add(prepared):
            self._tell_prepared()

    def on_connected(self, connected: Connected, further: Iterable[int] = ()) -> None:
        for rank in further:
            self._connected.add(replace(connected, rank=rank))
        if self._connected.add(connected):
            self._tell_connected()

    def tell_so_far(self) -> None:
        """With a heartbeat, where some rank is late."""
        self._tell_prepared()
        self._tell_connected()

    def _tell_prepared(self) -> None:
        if not (prepared := self._prepared.take()):
            return
        message = NodePrepared(
            generation=self._state.current.generation,
            ranks=tuple(each.rank for each in prepared),
            store=next((each.store for each in prepared if each.rank == self._store_rank), None),
            agreements=tuple(sorted({each.agreement for each in prepared})),
        )
        self._state.tell_coordinator(message)

    def _tell_connected(self) -> None:
        if connected := self._connected.take():
            ranks = tuple(each.rank for each in connected)
            self._state.tell_coordinator(NodeConnected(generation=self._state.current.generation, ranks=ranks))
