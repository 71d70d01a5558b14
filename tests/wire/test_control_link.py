from __future__ import annotations

import asyncio
import contextlib

import pytest
from front import MEMBER, NONSENSE, STATUS, Front, listening
from waiting import LIMIT_S

from deadpool.errors import WireError
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import JoinRefused
from deadpool.wire import streams
from deadpool.wire.control_link import ControlLink, connect
from deadpool.wire.credentials import Credentials


def test_messages_pass_both_ways_and_end_with_the_peer():
    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            client = await connect(address, MEMBER, patience_s=LIMIT_S)
            server = await front.links.get()
            client.send(STATUS)
            assert await anext(server.messages()) == STATUS
            server.send(JoinRefused(reason="no"))
            await server.close()
            assert [message async for message in client.messages()] == [JoinRefused(reason="no")]
            await client.close()

    asyncio.run(scenario())


def test_client_with_another_secret_is_refused():
    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            with pytest.raises(WireError, match="does not accept us"):
                await connect(address, Credentials(b"another secret"), patience_s=LIMIT_S)
            assert "does not know the job's secret" in await front.refusals.get()
            assert front.links.empty()

    asyncio.run(scenario())


@pytest.mark.parametrize(("nonsense", "reason"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_from_a_member_is_the_end_of_its_link(nonsense, reason):
    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            client = await connect(address, MEMBER, patience_s=LIMIT_S)
            server = await front.links.get()
            client.send(STATUS)
            client._writer.write(nonsense)
            assert [message async for message in server.messages()] == [STATUS]
            assert reason in server.lost_reason
            client.abort()

    asyncio.run(scenario())


def test_truncated_frame_and_the_end_is_no_message():
    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            client = await connect(address, MEMBER, patience_s=LIMIT_S)
            server = await front.links.get()
            client._writer.write((100).to_bytes(4, "big") + b"half")
            await client.close()
            assert [message async for message in server.messages()] == []

    asyncio.run(scenario())


def test_member_that_sends_a_frame_byte_by_byte_is_given_up(monkeypatch):
    monkeypatch.setattr(streams, "FRAME_S", 0.2)

    async def drip(link: ControlLink) -> None:
        with contextlib.suppress(OSError):
            for byte in (1000).to_bytes(4, "big") + bytes(1000):
                link._writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            client = await connect(address, MEMBER, patience_s=LIMIT_S)
            server = await front.links.get()
            dripping = asyncio.create_task(drip(client))
            async with asyncio.timeout(LIMIT_S):
                assert [message async for message in server.messages()] == []
            assert "not complete after 0.2 s" in server.lost_reason
            dripping.cancel()
            client.abort()

    asyncio.run(scenario())


def test_silence_between_frames_is_no_slowness(monkeypatch):
    monkeypatch.setattr(streams, "FRAME_S", 0.1)

    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            client = await connect(address, MEMBER, patience_s=LIMIT_S)
            server = await front.links.get()
            hearing = asyncio.ensure_future(anext(server.messages()))
            await asyncio.wait([hearing], timeout=0.3)
            client.send(STATUS)
            assert await hearing == STATUS
            client.abort()

    asyncio.run(scenario())


def test_nobody_listens():
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await connect(Address(host="127.0.0.1", port=9), MEMBER, patience_s=0.2)

    asyncio.run(scenario())
