from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from deadpool.errors import WireError
from deadpool.protocol.messages import Ask, Refused
from deadpool.protocol.topology import Address
from deadpool.wire.control_link import ControlLink, authenticated, connect
from deadpool.wire.framing import LIMIT_BYTES

SECRET = b"the job's secret"


@contextlib.asynccontextmanager
async def listener(arrived: asyncio.Queue[ControlLink | WireError]) -> AsyncIterator[Address]:
    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await arrived.put(await authenticated(reader, writer, SECRET, "server"))
        except WireError as error:
            await arrived.put(error)

    server = await asyncio.start_server(welcome, "127.0.0.1", 0)
    async with server:
        yield Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])


def test_messages_pass_both_ways_and_end_with_the_peer():
    async def scenario() -> None:
        arrived: asyncio.Queue[ControlLink | WireError] = asyncio.Queue()
        async with listener(arrived) as address:
            client = await connect(address, SECRET, patience_s=5.0)
            server = await arrived.get()
            assert isinstance(server, ControlLink)
            client.send(Ask(what="status", arguments={}))
            assert await anext(server.messages()) == Ask(what="status", arguments={})
            server.send(Refused(reason="no"))
            await server.close()
            assert [message async for message in client.messages()] == [Refused(reason="no")]
            await client.close()

    asyncio.run(scenario())


def test_client_with_another_secret_is_refused_and_learns_nothing():
    async def scenario() -> None:
        arrived: asyncio.Queue[ControlLink | WireError] = asyncio.Queue()
        async with listener(arrived) as address:
            with pytest.raises(WireError, match="not one of this job"):
                await connect(address, b"another secret", patience_s=5.0)
            assert "does not know the job's secret" in str(await arrived.get())

    asyncio.run(scenario())


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n" + bytes(64), b""])
def test_stranger_at_the_port_is_refused(noise):
    async def scenario() -> None:
        arrived: asyncio.Queue[ControlLink | WireError] = asyncio.Queue()
        async with listener(arrived) as address:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(noise)
            writer.write_eof()
            assert len(await reader.read()) <= 32, "a nonce, no proof"
            assert isinstance(await arrived.get(), WireError)
            writer.close()

    asyncio.run(scenario())


def test_oversized_frame_from_a_peer_is_refused():
    async def scenario() -> None:
        arrived: asyncio.Queue[ControlLink | WireError] = asyncio.Queue()
        async with listener(arrived) as address:
            client = await connect(address, SECRET, patience_s=5.0)
            server = await arrived.get()
            assert isinstance(server, ControlLink)
            client._writer.write((LIMIT_BYTES + 1).to_bytes(4, "big"))
            with pytest.raises(WireError, match="announced"):
                await anext(server.messages())
            client.abort()
            server.abort()

    asyncio.run(scenario())


def test_nobody_listens():
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await connect(Address(host="127.0.0.1", port=9), SECRET, patience_s=0.2)

    asyncio.run(scenario())
