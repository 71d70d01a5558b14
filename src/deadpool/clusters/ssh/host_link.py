"""One host of a running job, seen from the launcher: its connection, also across the loss of it, and its processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deadpool.clusters.ssh.connection import Connection, ConnectionFailed, SshClient
from deadpool.clusters.ssh.hosts import Host

_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_END_S = 20.0
"""More than a daemon takes to end what does not go by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a host is told. `start` has all fields of that message; `agent_again` starts an agent as a spare."""

    start: dict[str, Any] = field(repr=False)  # the job's secret is in it
    agent_again: list[str]


class HostLink:
    """`tell` gets every message of the host, and what happens to its connection as messages of this process."""

    def __init__(
        self,
        host: Host,
        client: SshClient,
        orders: Orders,
        *,
        lease_s: float,
        restart: bool,
        tell: Callable[[HostLink, dict[str, Any]], None],
    ) -> None:
        self.host, self._client, self._orders = host, client, orders
        self._lease_s, self._restart, self._tell = lease_s, restart, tell
        self._connection: Connection | None = None
        self._is_ending = False
        self.has_ended = False  # its daemon said so, or is gone
        self.heard_at = time.monotonic()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    async def tend(self, connection: Connection) -> None:
        """Starts the host's processes and returns when they have ended, or the host is given up."""
        await self._start(connection, self._orders.start)
        while self._connection is not None:
            await self._listen(self._connection)
            await self._forget(why=not self.has_ended)
            if not self.has_ended and not self._is_ending:
                await self._reconnect()

    def send(self, op: str, **fields: Any) -> None:
        if self._connection is not None:
            self._connection.send(op, **fields)

    def start_agent_again(self) -> None:
        self.send("agent", words=self._orders.agent_again)

    async def end(self, reason: str) -> bool:
        """Returns whether everything has ended there."""
        self._is_ending = True
        self.send("end", reason=reason)
        deadline = time.monotonic() + _END_S
        while self._connection is not None and not self.has_ended and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return self.has_ended

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _start(self, connection: Connection, order: dict[str, Any]) -> None:
        await connection.ask("start", "attached", **order)
        self._connection, self.has_ended = connection, False

    async def _listen(self, connection: Connection) -> None:
        async for message in connection.messages():
            self.heard_at = time.monotonic()
            self.has_ended = self.has_ended or message["op"] == "ended"
            self._tell(self, message)

    async def _forget(self, *, why: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            reason = await connection.why_it_ended() if why and not self._is_ending else ""
            await connection.close()
            if reason:
                self._tell(self, {"op": "connection_lost", "reason": reason})

    async def _reconnect(self) -> None:
        """Tries again until the lease of the daemon is over, which then has ended. To start it again, it tries as long
        as the job runs.
        """
        attempt = 0
        lost_at = time.monotonic()
        while not self._is_ending and (self._restart or time.monotonic() < lost_at + self._lease_s):
            await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            attempt += 1
            if self._is_ending or await self._try_again():
                return
        if not self._is_ending:
            self.has_ended = True
            self._tell(self, {"op": "given_up", "reason": f"it could not be reached for {self._lease_s:g} s"})

    async def _try_again(self) -> bool:
        """Returns whether there is nothing more to try."""
        with contextlib.suppress(ConnectionFailed):
            connection = await Connection.open(self._client, self.host)
            try:
                await self._find_daemon(connection)
                return True
            finally:
                if self._connection is not connection:
                    await connection.close()
        return False

    async def _find_daemon(self, connection: Connection) -> None:
        run = {name: self._orders.start[name] for name in ("run", "node")}
        answer = await connection.ask("attach", "attached", "absent", **run)
        if answer["op"] == "attached":
            self._connection = connection
            self._tell(self, {"op": "connected_again"})
        elif self._restart:
            again = {"agent": self._orders.agent_again, "coordinator": self._orders.start["coordinator_again"]}
            await self._start(connection, {**self._orders.start, **again})
            self._tell(self, {"op": "started_again"})
        else:
            self.has_ended = True
            reason = "the machine was started anew, or the job's daemon there has ended"
            self._tell(self, {"op": "given_up", "reason": reason})
