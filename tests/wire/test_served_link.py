"""Links of a server that has thousands: handed over without a task, as strict as the others."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from front import MEMBER, NONSENSE, STATUS, PushFront, listening
from waiting import LIMIT_S, wait_until_async

from deadpool.protocol.messages import JoinRefused
from deadpool.wire import control_link
from deadpool.wire.control_link import ControlLink, connect, framed


def play(scenario, *, listens: bool = True) -> None:
    """`scenario` gets the front and a client that has just been let in. Not `listens`: it says from when on."""

    async def run() -> None:
        front = PushFront()
        if listens:
            front.listens.set()
        async with listening(front) as address, asyncio.timeout(LIMIT_S):
            client = await connect(address, MEMBER, patience_s=LIMIT_S)
            await scenario(front, client)
            client.abort()

    asyncio.run(run())


async def heard(front: PushFront, count: int) -> list[object]:
    await wait_until_async(lambda: len(front.heard) >= count, f"{count} messages")
    return front.heard


def test_messages_pass_both_ways_and_end_with_the_peer():
    async def scenario(front: PushFront, client: ControlLink) -> None:
        client.send(STATUS)
        client.send(STATUS)
        assert await heard(front, 2) == [STATUS, STATUS]
        server = await front.served.get()
        server.send(JoinRefused(reason="no"))
        await server.close()
        assert [message async for message in client.messages()] == [JoinRefused(reason="no")]
        assert await front.ended.get() is server

    play(scenario)


def test_what_came_with_the_end_of_the_handshake_is_heard():
    """The streams of the handshake have read it already."""

    async def scenario(front: PushFront, client: ControlLink) -> None:
        data = framed(STATUS)
        early = 3 * data + data[:7]
        client._writer.write(early)
        server = await front.served.get()
        await wait_until_async(lambda: len(server._reader._buffer) == len(early), "what is early")
        front.listens.set()
        assert await heard(front, 3) == [STATUS, STATUS, STATUS]
        client._writer.write(data[7:])
        assert len(await heard(front, 4)) == 4

    play(scenario, listens=False)


def test_peer_that_left_before_anybody_listened_is_gone():
    async def scenario(front: PushFront, client: ControlLink) -> None:
        client.abort()
        server = await front.served.get()
        await wait_until_async(server._transport.is_closing, "the end of the peer")
        front.listens.set()
        async with asyncio.timeout(LIMIT_S):
            await front.ended.get()

    play(scenario, listens=False)


@pytest.mark.parametrize(("nonsense", "reason"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_from_a_member_is_the_end_of_its_link(nonsense, reason):
    async def scenario(front: PushFront, client: ControlLink) -> None:
        client.send(STATUS)
        client._writer.write(nonsense + framed(STATUS))
        async with asyncio.timeout(LIMIT_S):
            link = await front.ended.get()
        assert front.heard == [STATUS], "nothing is heard behind nonsense"
        assert reason in link.lost_reason

    play(scenario)


def test_member_that_sends_a_frame_byte_by_byte_is_given_up(monkeypatch):
    monkeypatch.setattr(control_link, "FRAME_S", 0.2)

    async def drip(link: ControlLink) -> None:
        with contextlib.suppress(OSError):
            for byte in (1000).to_bytes(4, "big") + bytes(1000):
                link._writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

    async def scenario(front: PushFront, client: ControlLink) -> None:
        dripping = asyncio.create_task(drip(client))
        async with asyncio.timeout(LIMIT_S):
            link = await front.ended.get()
        assert "not complete after 0.2 s" in link.lost_reason
        dripping.cancel()

    play(scenario)


def test_frames_in_halves_and_silence_between_them_are_no_slowness(monkeypatch):
    monkeypatch.setattr(control_link, "FRAME_S", 0.4)

    async def scenario(front: PushFront, client: ControlLink) -> None:
        data = framed(STATUS)
        for _ in range(4):
            client._writer.write(data[:9])
            await asyncio.sleep(0.15)
            client._writer.write(data[9:])
            await asyncio.sleep(0.15)
        assert await heard(front, 4) == 4 * [STATUS]
        assert front.ended.empty()

    play(scenario)
