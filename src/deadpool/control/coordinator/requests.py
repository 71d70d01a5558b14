"""The coordinator's side of commands that people give.

`DrainRpc`: the coordinator's side of `deadpool node drain` and `deadpool node replace`. The command is answered
before the drain is done.

`ExaminationRpc`: the coordinator's side of `deadpool doctor` beside a running job: it has every agent examine its
own node.

`InjectionRpc`: the coordinator's side of injected faults: it checks orders against the running job, and sends them
to the agents.

An order for a node that has not joined yet, or for a rank that no node holds yet, waits until then.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

from deadpool.config.orders import InjectionOrder
from deadpool.errors import ConfigError
from deadpool.events.event import Event
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.identity import Address
from deadpool.protocol.inputs import DrainAsked
from deadpool.protocol.messages import Answer, Examine, Examined, Injection, Peer, Plan


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


_WAIT_S = 20.0  # longer than an agent gives its examination


class ExaminationRpc:
    def __init__(self, core: Callable[[], Coordinator], *, send: Callable[[str, Examine], None]) -> None:
        """`core` gives the coordinator's core of the present term."""
        self._core, self._send = core, send
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[int, str], asyncio.Future[dict[str, Any]]] = {}

    async def examine(self, arguments: dict[str, Any], facts: Mapping[str, dict[str, Any]]) -> Answer:
        """`facts` is what each connected node last said of itself."""
        arrived = time.time()
        number, members = next(self._numbers), dict(self._core().members)
        peers = [Peer(node=node, address=member.data) for node, member in members.items()]
        try:
            peers += _joining(arguments)
        except (KeyError, TypeError, ValueError) as error:
            return Answer(body={}, error=f"joining={arguments.get('joining')!r} cannot be used: {error}")
        found = await asyncio.gather(*(self._ask(number, node, peers) for node in members))
        nodes = {
            node: {
                **told,
                "host": member.data.host,
                "port": member.data.port,
                "push_gbps": facts.get(node, {}).get("push_gbps"),
                "arena_bytes": facts.get(node, {}).get("arena_bytes", 0),
            }
            for (node, member), told in zip(members.items(), found, strict=True)
        }
        return Answer(body={"nodes": nodes, "arrived": arrived, "left": time.time()})

    def on_examined(self, node: str, message: Examined) -> None:
        waiting = self._waiting.get((message.number, node))
        if waiting is not None and not waiting.done():
            waiting.set_result({**message.body, "received": time.time()})

    async def _ask(self, number: int, node: str, peers: list[Peer]) -> dict[str, Any]:
        key = number, node
        self._waiting[key] = asyncio.get_running_loop().create_future()
        sent = time.time()
        others = tuple(peer for peer in peers if peer.node != node)
        self._send(node, Examine(number=number, peers=others))
        try:
            async with asyncio.timeout(_WAIT_S):
                return {**await self._waiting[key], "sent": sent}
        except TimeoutError:
            return {"error": f"its agent did not answer within {_WAIT_S:g} s"}
        finally:
            del self._waiting[key]


def _joining(arguments: dict[str, Any]) -> list[Peer]:
    """A machine that wants to join: the agents try whether they reach it."""
    joining = arguments.get("joining")
    if joining is None:
        return []
    return [Peer(node=str(joining["node"]), address=Address(host=str(joining["host"]), port=int(joining["port"])))]


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
            self._refuse_outside_of_drills(order)
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
        injection = Injection(
            signal=int(order.signal),
            rank=order.rank,
            at=order.at,
            step=order.step,
            flips=order.flip or "",
            lasts=order.lasts,
            ranks_per_node=self._core().layout.per_node if order.flip is not None else 1,
        )
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

    def _refuse_outside_of_drills(self, order: InjectionOrder) -> None:
        if order.flip is not None and not self._core().settings.drills:
            raise ConfigError(
                "state is changed in drills only, and this job was not started for one: start it with --drills"
            )

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
