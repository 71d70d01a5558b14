"""Peers of different versions refuse each other, and each of them names both versions."""

from __future__ import annotations

import asyncio
import re
from functools import partial

import pytest
from front import MEMBER, STATUS, Front, heard_by_unauthenticated_peer, listening
from handshakes import client, server
from waiting import LIMIT_S

import deadpool
from deadpool.errors import VersionMismatch, WireError
from deadpool.protocol.identity import Address
from deadpool.wire import control_link, handshake, streams
from deadpool.wire.control_link import connect
from deadpool.wire.credentials import Credentials
from deadpool.wire.handshake import HELLO_BYTES, PROOF_BYTES, VERSION_BYTES, Handshake, old_hello
from deadpool.wire.streams import BlockingLink

OURS, THEIRS = deadpool.__version__, "0.0.9+other.1"
OTHER = partial(Handshake, version=THEIRS)


def sentence(theirs: str, ours: str) -> str:
    return f"it runs {theirs}, and this process runs DeadPool {ours}: install the same version on every node"


# --- the state machine -----------------------------------------------------------------------------------------------


def test_both_sides_learn_both_versions():
    a, b = client(version=THEIRS), server()
    claimed = a.feed(b.feed(a.opening()))
    with pytest.raises(VersionMismatch, match=re.escape(sentence(f"DeadPool {THEIRS}", OURS))) as at_server:
        b.feed(claimed)
    with pytest.raises(VersionMismatch, match=re.escape(sentence(f"DeadPool {OURS}", THEIRS))):
        a.feed(at_server.value.last_words)
    assert not a.done and not b.done


def test_unauthenticated_peer_does_not_learn_the_version():
    victim, outside = server(), client(secret=b"another secret of 16", version=THEIRS)
    heard = victim.feed(outside.opening())
    with pytest.raises(WireError, match="does not know the job's secret") as refusal:
        victim.feed(outside.feed(heard))
    assert not isinstance(refusal.value, VersionMismatch)
    assert OURS.encode() not in heard and len(heard) == HELLO_BYTES


def test_version_that_was_changed_on_the_way_is_not_believed():
    """Else a man in the middle could make two nodes of one version blame each other."""
    a, b = client(), server()
    claimed = a.feed(b.feed(a.opening()))
    assert len(claimed) == PROOF_BYTES
    forged = claimed[:-VERSION_BYTES] + THEIRS.encode().ljust(VERSION_BYTES, b"\0")
    with pytest.raises(WireError, match="does not know the job's secret") as refusal:
        b.feed(forged)
    assert not isinstance(refusal.value, VersionMismatch)


@pytest.mark.parametrize(("number", "word"), [(b"3", "an older"), (b"5", "a newer")])
def test_peer_of_another_handshake_is_named_a_version(number, word):
    a, b = client(), server()
    hello = a.opening().replace(b"DEADPL4", b"DEADPL" + number)
    with pytest.raises(
        VersionMismatch, match=f"{word} DeadPool whose version it cannot tell.*DeadPool {OURS}"
    ) as found:
        b.feed(hello)
    assert found.value.last_words, "an old client gets a hello, and says that this is not its own"
    with pytest.raises(VersionMismatch, match=word):
        a.feed(hello[:-32] + bytes(32))


def test_another_port_of_an_old_version_is_a_unauthenticated_peer():
    with pytest.raises(WireError) as refusal:
        server().feed(old_hello("data"))
    assert not isinstance(refusal.value, VersionMismatch)


@pytest.mark.parametrize("version", ["", "1" * VERSION_BYTES, "0.1.0.dev3+g0123456.d20261116", "0.1.0 ä"])
def test_any_text_is_a_version(version):
    a, b = client(version=version), server(version=version)
    a.feed(b.feed(a.feed(b.feed(a.opening()))))
    assert a.done and b.done


# --- control plane, with real sockets --------------------------------------------------------------------------------


def test_control_link_and_listener_name_both_versions(monkeypatch):
    monkeypatch.setattr(control_link, "Handshake", OTHER)

    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            began = asyncio.get_running_loop().time()
            with pytest.raises(VersionMismatch, match=re.escape(sentence(f"DeadPool {OURS}", THEIRS))):
                await connect(address, MEMBER, patience_s=LIMIT_S)
            assert asyncio.get_running_loop().time() - began < 1.0, "it does not ask again"
            refused = await front.refusals.get()
            assert "is refused: " + sentence(f"DeadPool {THEIRS}", OURS) in refused
            assert front.links.empty()

    asyncio.run(scenario())


def test_both_learn_it_through_tls(monkeypatch):
    pytest.importorskip("cryptography")
    from deadpool.wire.credentials import load_tls

    monkeypatch.setattr(control_link, "Handshake", OTHER)

    async def scenario() -> None:
        front = Front(Credentials(MEMBER.secret, load_tls("ephemeral", serving=True)))
        async with listening(front) as address:
            asking = Credentials(MEMBER.secret, load_tls("ephemeral", serving=False))
            with pytest.raises(VersionMismatch, match=re.escape(sentence(f"DeadPool {OURS}", THEIRS))):
                await connect(address, asking, patience_s=LIMIT_S)
            assert THEIRS in await front.refusals.get()

    asyncio.run(scenario())


def test_blocking_link_names_both_versions(monkeypatch):
    monkeypatch.setattr(streams, "Handshake", OTHER)

    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            with pytest.raises(VersionMismatch, match=re.escape(sentence(f"DeadPool {OURS}", THEIRS))):
                await asyncio.to_thread(BlockingLink, address, MEMBER, "control", timeout_s=LIMIT_S)
            assert THEIRS in await front.refusals.get()

    asyncio.run(scenario())


def test_old_client_is_named_and_hears_that_this_is_not_its_own():
    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            heard = await heard_by_unauthenticated_peer(address, old_hello("control"))
            assert len(heard) == HELLO_BYTES and not heard.startswith(handshake.OLD_MAGIC)
            assert f"an older DeadPool whose version it cannot tell, and this process runs DeadPool {OURS}" in (
                await front.refusals.get()
            )

    asyncio.run(scenario())


async def _old_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What versions without versions do with a hello: answer one of their own, hang up on any other."""
    if (await reader.readexactly(HELLO_BYTES)).startswith(handshake.OLD_MAGIC + b"C"):
        writer.write(old_hello("control"))
        await writer.drain()
    writer.close()


def test_old_server_is_named():
    async def scenario() -> None:
        serving = await asyncio.start_server(_old_server, "127.0.0.1", 0)
        async with serving:
            address = Address(host="127.0.0.1", port=serving.sockets[0].getsockname()[1])
            with pytest.raises(
                VersionMismatch, match=f"does not tell its version, and this process runs DeadPool {OURS}"
            ):
                await connect(address, MEMBER, patience_s=LIMIT_S)

    asyncio.run(scenario())


def test_unauthenticated_peer_that_hangs_up_is_not_taken_for_an_old_version():
    async def scenario() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(HELLO_BYTES)
            writer.close()

        serving = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        async with serving:
            address = Address(host="127.0.0.1", port=serving.sockets[0].getsockname()[1])
            with pytest.raises(WireError, match="does not accept us") as refusal:
                await connect(address, MEMBER, patience_s=LIMIT_S)
            assert not isinstance(refusal.value, VersionMismatch)

    asyncio.run(scenario())


def test_equal_versions_are_let_in():
    async def scenario() -> None:
        front = Front()
        async with listening(front) as address:
            link = await connect(address, MEMBER, patience_s=LIMIT_S)
            link.send(STATUS)
            assert await anext((await front.links.get()).messages()) == STATUS
            assert front.refusals.empty()
            link.abort()

    asyncio.run(scenario())
