"""Unauthenticated peers at a port of the control plane, with real sockets: none gets in, none keeps a member out."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from front import MEMBER, STATUS, Front, heard_by_unauthenticated_peer, listening
from waiting import LIMIT_S

from deadpool.protocol.identity import Address
from deadpool.wire import listener
from deadpool.wire.control_link import connect
from deadpool.wire.handshake import HELLO_BYTES, PROOF_BYTES, Handshake
from deadpool.wire.listener import PreauthLimit

HELLO = Handshake(MEMBER.secret, "client", "control").opening()


async def is_let_in(front: Front, address: Address) -> bool:
    link = await connect(address, MEMBER, patience_s=LIMIT_S)
    server = await front.links.get()
    link.send(STATUS)
    heard = await anext(server.messages())
    link.abort()
    return heard == STATUS


@pytest.mark.parametrize(
    "words",
    [
        [b"GET / HTTP/1.1\r\n\r\n" + bytes(64)],
        [bytes(10_000)],
        [HELLO, bytes(PROOF_BYTES)],
        [Handshake(MEMBER.secret, "client", "data").opening()],
    ],
    ids=["http", "zeros", "no proof", "another purpose"],
)
def test_unauthenticated_peer_learns_a_random_number_at_most(words):
    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            assert len(await heard_by_unauthenticated_peer(address, *words)) <= HELLO_BYTES
            assert "is not one of this job" in await front.refusals.get()
            assert await is_let_in(front, address)

    asyncio.run(scenario())


def test_replayed_handshake_is_refused():
    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            recorded = await record_member(address)
            await front.links.get()
            await heard_by_unauthenticated_peer(address, *recorded)
            assert "does not know the job's secret" in await front.refusals.get()
            assert front.links.empty()

    asyncio.run(scenario())


async def record_member(address: Address) -> list[bytes]:
    """What a member says to be let in."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    handshake = Handshake(MEMBER.secret, "client", "control")
    said = [handshake.opening()]
    writer.write(said[0])
    while not handshake.done:
        said.append(handshake.feed(await reader.readexactly(handshake.needed)))
        writer.write(said[-1])
    writer.transport.abort()
    return said


def test_unauthenticated_peer_that_sends_byte_by_byte_is_thrown_out(monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.2)

    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            dripping = asyncio.create_task(drip(writer))
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "a hello that is complete would be answered"
            dripping.cancel()
            writer.transport.abort()
            assert "too slow" in await front.refusals.get()

    async def drip(writer: asyncio.StreamWriter) -> None:
        for byte in HELLO:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_crowd_of_silent_unauthenticated_peers_keeps_no_member_out():
    async def scenario() -> None:
        front = Front()
        front.reception._unauthenticated = PreauthLimit(limit=8, grace_s=0.05)
        async with listening(front) as address:
            crowd = [await asyncio.open_connection(address.host, address.port) for _ in range(30)]
            assert await is_let_in(front, address)
            assert len(front.reception._unauthenticated) <= 8
            for _, writer in crowd:
                writer.transport.abort()

    asyncio.run(scenario())


def test_storm_of_members_is_let_in_completely():
    async def scenario() -> None:
        front = Front()
        front.reception._unauthenticated = PreauthLimit(limit=4, grace_s=LIMIT_S)
        async with listening(front) as address:
            links = await asyncio.gather(*(connect(address, MEMBER, patience_s=LIMIT_S) for _ in range(60)))
            for link in links:
                link.abort()
            assert front.refusals.empty()

    asyncio.run(scenario())


def test_unauthenticated_peer_who_knocks_all_day_does_not_fill_the_log(monkeypatch):
    monkeypatch.setattr(listener, "_TELL_EVERY_S", 3600.0)

    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            for _ in range(20):
                await heard_by_unauthenticated_peer(address, bytes(100))
            assert front.refusals.qsize() == 1
        assert front.refusals.qsize() == 2, "the others are told together"

    asyncio.run(scenario())
