"""A listening port of the control plane that hands its links to a test, and what a peer without the secret hears."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from waiting import LIMIT_S

from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Ask
from deadpool.wire.codec import LIMIT_BYTES
from deadpool.wire.control_link import ControlLink, ServedLink
from deadpool.wire.credentials import Credentials
from deadpool.wire.listener import AuthenticatedListener, RefusedPeer

MEMBER = Credentials(b"the job's own secret")
STATUS = Ask(what="status", arguments={})
NONSENSE = {
    "oversized": ((LIMIT_BYTES + 1).to_bytes(4, "big"), "announced"),
    "garbage": ((5).to_bytes(4, "big") + b"\xc1" * 5, "are not a message"),
}
"""From a member, and what its link is given up for."""


class Front:
    """A reception that hands its links to the test, and what it refused."""

    def __init__(self, credentials: Credentials = MEMBER) -> None:
        self.links: asyncio.Queue[ControlLink] = asyncio.Queue()
        self.refusals: asyncio.Queue[str] = asyncio.Queue()
        self.reception = AuthenticatedListener(credentials, "control", self._converse, self._refused)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.links.put(ControlLink(reader, writer))
        await asyncio.Event().wait()

    def _refused(self, refused: RefusedPeer, count: int) -> None:
        self.refusals.put_nowait(refused.sentence)


class PushFront(Front):
    """The same with the links of a server that has many: what they say is put down as it arrives."""

    def __init__(self, credentials: Credentials = MEMBER) -> None:
        super().__init__(credentials)
        self.listens = asyncio.Event()  # for a test to set
        self.heard: list[Any] = []
        self.ended: asyncio.Queue[ServedLink] = asyncio.Queue()
        self.served: asyncio.Queue[ServedLink] = asyncio.Queue()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = ServedLink(reader, writer)
        self.served.put_nowait(link)
        await self.listens.wait()
        await link.listen(self.heard.append)
        self.ended.put_nowait(link)


@contextlib.asynccontextmanager
async def listening(front: Front) -> AsyncIterator[Address]:
    address = await front.reception.start("127.0.0.1", 0)
    try:
        yield address
    finally:
        await front.reception.close()


async def heard_by_unauthenticated_peer(address: Address, *words: bytes) -> bytes:
    """All that an unauthenticated peer gets for its words until it is thrown out."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    heard = b""
    try:
        for word in words:
            writer.write(word)
        async with asyncio.timeout(LIMIT_S):
            while data := await reader.read(1000):
                heard += data
    except ConnectionError:
        pass
    writer.transport.abort()
    return heard
