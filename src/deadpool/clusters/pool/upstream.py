"""The connection of a machine to its pool. Without one the machine goes on, and tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from deadpool.control.console import print_line
from deadpool.errors import DeadPoolError
from deadpool.protocol.messages import Assignment, JoinRefused, PoolNotice
from deadpool.protocol.topology import Address
from deadpool.wire.control_link import ControlLink, connect
from deadpool.wire.credentials import Credentials
from deadpool.wire.keepalive import notice_silence

_ATTEMPT_S = 2.0
_PAUSE_S = 0.5
_REFUSED_PAUSE_S = 5.0


class PoolUpstream:
    def __init__(self, find: Callable[[], tuple[Address, Credentials]]) -> None:
        """`find` is asked before every attempt: a pool that is started again may listen elsewhere."""
        self._find = find
        self._link: ControlLink | None = None
        self._reason = ""  # printed when it changes
        self._pause_s = _PAUSE_S

    def send(self, message: Any) -> None:
        """Sends a message, or drops it without a connection: a pool is told everything when the connection is back."""
        if self._link is not None:
            self._link.send(message)

    async def run(self, on_assignment: Callable[[Assignment], None], *, on_connected: Callable[[], None]) -> None:
        while True:
            reason = await self._connect_once(on_assignment, on_connected)
            if reason != self._reason:
                self._reason = reason
                print_line(f"[deadpool] no pool: {reason}; this machine goes on with what it was told last")
            await asyncio.sleep(self._pause_s)

    async def _connect_once(self, on_assignment: Callable[[Assignment], None], on_connected: Callable[[], None]) -> str:
        self._pause_s = _PAUSE_S
        try:
            address, credentials = self._find()
            self._link = link = await connect(address, credentials, patience_s=_ATTEMPT_S)
        except TimeoutError:
            return "no process answers there"
        except (OSError, DeadPoolError) as error:
            return str(error)
        notice_silence(link.streams[1])
        try:
            on_connected()
            async for message in link.messages():
                match message:
                    case Assignment():
                        self._reason = ""
                        on_assignment(message)
                    case PoolNotice(text=text):
                        print_line(f"[deadpool] the pool says: {text}")
                    case JoinRefused(reason=reason):
                        self._pause_s = _REFUSED_PAUSE_S
                        return reason
                    case _:
                        pass  # a pool says nothing else
            return link.lost_reason
        finally:
            link.abort()
            self._link = None
