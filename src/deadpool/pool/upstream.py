"""The connection of a machine to its pool. Without one the machine goes on, and tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from deadpool.control.console import print_line
from deadpool.errors import WireError
from deadpool.protocol.messages import Assignment
from deadpool.protocol.topology import Address
from deadpool.wire.control_link import ControlLink, connect
from deadpool.wire.credentials import Credentials

_ATTEMPT_S = 2.0
_PAUSE_S = 0.5


class PoolUpstream:
    def __init__(self, find: Callable[[], tuple[Address, Credentials]]) -> None:
        """`find` is asked before every attempt: a pool that is started again may listen elsewhere."""
        self._find = find
        self._link: ControlLink | None = None
        self._reason = ""  # printed when it changes

    def send(self, message: Any) -> None:
        """Without a connection it is dropped: a pool is told everything when the connection is back."""
        if self._link is not None:
            self._link.send(message)

    async def run(self, on_assignment: Callable[[Assignment], None], *, on_connected: Callable[[], None]) -> None:
        while True:
            reason = await self._connect_once(on_assignment, on_connected)
            if reason != self._reason:
                self._reason = reason
                print_line(f"[deadpool] no pool: {reason}; this machine goes on with what it was told last")
            await asyncio.sleep(_PAUSE_S)

    async def _connect_once(self, on_assignment: Callable[[Assignment], None], on_connected: Callable[[], None]) -> str:
        try:
            address, credentials = self._find()
            self._link = link = await connect(address, credentials, patience_s=_ATTEMPT_S)
        except TimeoutError:
            return "no process answers there"
        except (OSError, WireError) as error:
            return str(error)
        self._reason = ""
        try:
            on_connected()
            async for message in link.messages():
                if isinstance(message, Assignment):
                    on_assignment(message)
            return link.lost_reason
        finally:
            link.abort()
            self._link = None
