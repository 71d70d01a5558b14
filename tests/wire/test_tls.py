"""TLS under the handshake: it works, it is not optional once wanted, and a man in the middle gets nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from front import STATUS, Front, heard_by_unauthenticated_peer, listening
from waiting import LIMIT_S

from deadpool.errors import ConfigError, WireError
from deadpool.protocol.identity import Address
from deadpool.wire.control_link import connect
from deadpool.wire.credentials import Credentials, Tls, load_tls
from deadpool.wire.handshake import Handshake
from deadpool.wire.streams import BlockingLink

SECRET = b"the job's own secret"


@pytest.fixture
def ephemeral() -> Tls:
    pytest.importorskip("cryptography")
    tls = load_tls("ephemeral", serving=True)
    assert tls is not None
    return tls


async def talk(server: Credentials, client: Credentials) -> None:
    front = Front(server)
    async with listening(front) as address:
        link = await connect(address, client, patience_s=LIMIT_S)
        link.send(STATUS)
        assert await anext((await front.links.get()).messages()) == STATUS
        link.abort()


def test_members_talk_through_ephemeral_certificates(ephemeral):
    asyncio.run(talk(Credentials(SECRET, ephemeral), Credentials(SECRET, load_tls("ephemeral", serving=False))))


def test_members_talk_through_their_own_certificates(own_certificates):
    folder = str(own_certificates("site"))
    asyncio.run(talk(*(Credentials(SECRET, load_tls(folder, serving=True)) for _ in range(2))))


def test_member_with_a_certificate_of_another_authority_is_refused(own_certificates):
    here, elsewhere = (load_tls(str(own_certificates(name)), serving=True) for name in ("site", "elsewhere"))
    with pytest.raises(WireError):
        asyncio.run(talk(Credentials(SECRET, here), Credentials(SECRET, elsewhere)))


def test_right_certificate_without_the_secret_is_refused(own_certificates):
    tls = load_tls(str(own_certificates("site")), serving=True)
    with pytest.raises(WireError, match="does not accept us"):
        asyncio.run(talk(Credentials(SECRET, tls), Credentials(b"another secret of 16", tls)))


def test_who_speaks_without_tls_is_refused_and_learns_nothing(ephemeral):
    hello = Handshake(SECRET, "client", "control").opening()

    async def scenario() -> None:
        front = Front(Credentials(SECRET, ephemeral))
        async with listening(front) as address:
            heard = await heard_by_unauthenticated_peer(address, hello)
            assert hello[:7] not in heard and len(heard) < 20, "an alert of TLS, no hello"
            with pytest.raises(WireError):
                await connect(address, Credentials(SECRET), patience_s=LIMIT_S)
            assert front.links.empty()

    asyncio.run(scenario())


def test_client_that_wants_tls_does_not_talk_to_a_server_without(ephemeral):
    with pytest.raises((WireError, TimeoutError)):
        asyncio.run(talk(Credentials(SECRET), Credentials(SECRET, ephemeral)))


@contextlib.asynccontextmanager
async def man_in_the_middle(server: Address, own: Tls, to_server: Tls) -> AsyncIterator[Address]:
    """Decrypts, looks, encrypts again: a TLS connection to each side, every byte passed on."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            onward = await asyncio.open_connection(server.host, server.port, ssl=to_server.client)
            await asyncio.gather(pump(reader, onward[1]), pump(onward[0], writer))

    listener = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=own.server)
    async with listener:
        yield Address(host="127.0.0.1", port=listener.sockets[0].getsockname()[1])


def test_man_in_the_middle_is_noticed_by_the_server_and_the_client(ephemeral):
    asking = load_tls("ephemeral", serving=False)
    middle = load_tls("ephemeral", serving=True)

    async def scenario() -> None:
        front = Front(Credentials(SECRET, ephemeral))
        async with listening(front) as address, man_in_the_middle(address, middle, asking) as trap:
            with pytest.raises(WireError):
                await connect(trap, Credentials(SECRET, asking), patience_s=LIMIT_S)
            assert "does not know the job's secret" in await front.refusals.get()
            assert front.links.empty()

    asyncio.run(scenario())


def test_successor_is_believed_with_a_certificate_that_nobody_has_seen(ephemeral):
    successor, asking = load_tls("ephemeral", serving=True), load_tls("ephemeral", serving=False)
    assert successor is not None and successor.certificate != ephemeral.certificate

    async def scenario() -> None:
        for coordinator in (ephemeral, successor):
            await talk(Credentials(SECRET, coordinator), Credentials(SECRET, asking))
        with pytest.raises(WireError):
            await talk(Credentials(b"another job's secret", successor), Credentials(SECRET, asking))

    asyncio.run(scenario())


def test_blocking_link_speaks_tls_too(ephemeral):
    async def scenario() -> None:
        front = Front(Credentials(SECRET, ephemeral))
        async with listening(front) as address:
            asking = Credentials(SECRET, load_tls("ephemeral", serving=False))
            link = await asyncio.to_thread(BlockingLink, address, asking, "control", timeout_s=LIMIT_S)
            server = await front.links.get()
            server.send(STATUS)
            assert len(await asyncio.to_thread(link.receive, LIMIT_S)) > 0
            link.close()

    asyncio.run(scenario())


def test_folder_that_cannot_be_used_is_refused_with_what_would_do(tmp_path):
    with pytest.raises(
        ConfigError, match=r"(?i)give off, ephemeral, or a folder with cert.pem, key.pem(, | and )ca.pem"
    ):
        load_tls(str(tmp_path), serving=True)


def test_without_the_package_ephemeral_certificates_are_refused_with_what_to_install():
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from deadpool.errors import ConfigError\n"
        "from deadpool.wire.credentials import load_tls\n"
        "load_tls('ephemeral', serving=False)\n"
        "try: load_tls('ephemeral', serving=True)\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert "torch-deadpool[tls]" in done.stdout, done.stderr


def test_key_is_in_no_file(ephemeral, tmp_path):
    assert ephemeral.certificate and ephemeral.server is not None
    assert list(tmp_path.iterdir()) == []
