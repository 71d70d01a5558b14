"""How an agent keeps in touch with a coordinator: it calls one after the other until somebody takes it in, and again
whenever that link has ended. What the loss of a link means is the core's to say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from deadpool.errors import WireError
from deadpool.protocol.agent.coordinator_search import CoordinatorSearch
from deadpool.protocol.effects import CoordinatorFound, CoordinatorLost, FromCoordinator
from deadpool.protocol.messages import Join, Order, Welcome
from deadpool.protocol.topology import Address
from deadpool.wire.control_link import ControlLink, connect
from deadpool.wire.credentials import Credentials

_ATTEMPT_S = 1.0  # for a coordinator to answer, before the next one is tried
_PAUSE_S = 0.2  # between two rounds


class Calling:
    def __init__(
        self,
        coordinators: Sequence[Address],
        credentials: Credentials,
        *,
        join: Callable[[], Join],
        feed: Callable[[Any], None],
        order: Callable[[Any], None],
    ) -> None:
        """`join` is what a link begins with, `feed` takes inputs for the core, `order` what is said in no term."""
        self._coordinators, self._credentials = tuple(coordinators), credentials
        self._join, self._feed, self._order = join, feed, order
        self._search = CoordinatorSearch()
        self._link: ControlLink | None = None
        self.is_welcome = False  # by whoever is at the other end of this link

    async def reach(self, patience_s: float) -> None:
        """The first link. TimeoutError: nobody answered at all."""
        deadline = time.monotonic() + patience_s
        while self._link is None:
            if time.monotonic() > deadline:
                raise TimeoutError
            self._link = await self._call()

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            if self._link is None:
                self._link = await self._call()
                continue
            self._feed(CoordinatorFound(patience=self._search.accepted(len(self._coordinators))))
            self._link.send(self._join())
            reason = await self._listen(self._link)
            self._link, self.is_welcome = None, False
            self._feed(CoordinatorLost(reason=reason))

    def send(self, message: Any) -> None:
        """Into the void, if there is nobody: what has to be known later is asked for then."""
        if self._link is not None:
            self._link.send(message)

    def hang_up(self) -> None:
        if self._link is not None:
            self._link.abort()

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _call(self) -> ControlLink | None:
        """One attempt."""
        count = len(self._coordinators)
        address = self._coordinators[self._search.choose(count)]
        try:
            return await connect(address, self._credentials, patience_s=_ATTEMPT_S)
        except (TimeoutError, WireError, OSError):
            if self._search.is_over(count):
                await asyncio.sleep(_PAUSE_S)
            return None

    async def _listen(self, link: ControlLink) -> str:
        """Until the link ends. Returns why."""
        try:
            async for message in link.messages():
                self._hear(message)
        except WireError as error:
            link.abort()
            return str(error)
        return link.lost_reason

    def _hear(self, message: Any) -> None:
        if not isinstance(message, Order):
            self._order(message)
            return
        if isinstance(message.message, Welcome):
            self._coordinators = message.message.settings.coordinators or self._coordinators
            self._search.start_over()
            self.is_welcome = True
        self._feed(FromCoordinator(term=message.term, message=message.message))
