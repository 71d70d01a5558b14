"""The coordinator's side of injected faults: it checks orders against the running job, and sends them to the agents.

An order for a node that has not joined yet, or for a rank that no node holds yet, waits until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deadpool.config.fault_orders import InjectionOrder
from deadpool.errors import ConfigError
from deadpool.events.event import Event
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.messages import Answer, Injection, Plan


class InjectionRpc:
    def __init__(
        self,
        core: Callable[[], Coordinator],
        orders: list[InjectionOrder],
        *,
        send: Callable[[str, Injection], None],
        log_event: Callable[[Event], None],
    ) -> None:
        """`core` gives the coordinator's core of the present term."""
        self._core, self._send, self._log_event = core, send, log_event
        self._pending = list(orders)

    def order(self, arguments: dict[str, Any]) -> Answer:
        """An order of `deadpool node kill`."""
        try:
            order = InjectionOrder(**arguments).checked()
            node = self._node_of(order)
            self._refuse_past(order, node)
        except ConfigError as error:
            return Answer(body={}, error=str(error))
        self._send_order(order, node)
        body: dict[str, Any] = {"node": node, "rank": order.rank}
        return Answer(body=body if order.at is None else {**body, "at": order.at, "step": order.step})

    def joined(self, node: str) -> None:
        self._send_due(lambda order: order.node == node, node)

    def planned(self, node: str, plan: Plan) -> None:
        """Called before the plan is sent to the node, so that a rank is hit wherever it is seated first."""
        if self._pending:
            ranks = {order.rank for order in plan.orders}
            self._send_due(lambda order: order.rank in ranks, node)

    def _send_due(self, is_due: Callable[[InjectionOrder], bool], node: str) -> None:
        due = [order for order in self._pending if is_due(order)]
        self._pending = [order for order in self._pending if not is_due(order)]
        for order in due:
            self._send_order(order, node)

    def _send_order(self, order: InjectionOrder, node: str) -> None:
        injection = Injection(signal=int(order.signal), rank=order.rank, at=order.at, step=order.step)
        self._log_event(_event_of(order, node))
        self._send(node, injection)

    def _node_of(self, order: InjectionOrder) -> str:
        core = self._core()
        if order.rank is None:
            if order.node not in core.members:
                raise ConfigError(f"there is no node {order.node!r}: give one of {', '.join(sorted(core.members))}")
            return order.node
        if not 0 <= order.rank < core.layout.world_size:
            raise ConfigError(f"there is no rank {order.rank}: give 0 to {core.layout.world_size - 1}")
        position = core.layout.position_of(order.rank)
        if position >= len(core.seats) or core.seats[position] not in core.members:
            raise ConfigError(
                f"no node holds rank {order.rank} now, because the job is {core.phase.value}: ask again when it runs"
            )
        return core.seats[position]

    def _refuse_past(self, order: InjectionOrder, node: str) -> None:
        """Refuses a step that is past as far as the coordinator knows. A step that is over when the order arrives is
        reported as injection_missed."""
        steps = self._core().members[node].steps
        stands = [step for rank, step in steps.items() if order.rank in (None, rank)]
        if order.step is not None and stands and min(stands) > order.step:
            raise ConfigError(
                f"step={order.step} is past: {order.place()} has completed {min(stands)} steps; give a later one"
            )


def _event_of(order: InjectionOrder, node: str) -> Event:
    if order.at is None:
        return Event(what="signal_sent", node=node, rank=order.rank, detail={"signal": int(order.signal)})
    detail = {"at": order.at, "signal": int(order.signal), "when": order.moment()}
    return Event(what="injection_ordered", node=node, rank=order.rank, step=order.step, detail=detail)
