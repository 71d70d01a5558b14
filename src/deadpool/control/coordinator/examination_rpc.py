"""The coordinator's side of `deadpool doctor` beside a running job: it has every agent examine its own node."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.messages import Answer, Examine, Examined, Peer
from deadpool.protocol.topology import Address

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
