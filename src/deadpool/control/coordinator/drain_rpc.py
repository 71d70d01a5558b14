"""The coordinator's side of `deadpool node drain` and `deadpool node replace`. The command is answered before
the drain is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.inputs import DrainAsked
from deadpool.protocol.messages import Answer


class DrainRpc:
    def __init__(self, core: Callable[[], Coordinator], *, feed: Callable[[DrainAsked], None]) -> None:
        """`core` gives the coordinator's core of the present term."""
        self._core, self._feed = core, feed

    def drain(self, arguments: dict[str, Any]) -> Answer:
        return self._drain(str(arguments.get("node")), "asked to")

    def replace_straggler(self) -> Answer:
        slowest = self._core().stragglers.slowest()
        if slowest is None:
            return Answer(body={}, error="no node is slow all the time: use deadpool node drain --node for another one")
        answer = self._drain(slowest.node, slowest.text)
        return Answer(body={**answer.body, **slowest.facts()}, error=answer.error)

    def _drain(self, node: str, reason: str) -> Answer:
        core = self._core()
        if (refusal := core.refusal_to_drain(node)) is not None:
            return Answer(body={}, error=f"node {node} cannot be drained: {refusal}")
        position = core.members[node].position
        ranks = list(core.layout.ranks_at(position)) if position is not None else []
        self._feed(DrainAsked(node=node, reason=reason))
        drain = core.drains.current
        return Answer(body={"node": node, "ranks": ranks, "successor": drain.successor if drain is not None else None})
