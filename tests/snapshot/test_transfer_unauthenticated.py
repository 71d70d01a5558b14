"""The data plane with unauthenticated and slow peers, and with TLS: real sockets, and a correct push afterwards."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from snapshot_nodes import (
    DEADLINE_S,
    GENERATION,
    GEOMETRY,
    MEMBER,
    SILENCE_S,
    WAIT_S,
    Owner,
    greeted,
    pull_request,
    push_request,
)

from deadpool.errors import TransferError
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import region
from deadpool.snapshot.transfer import TransferClient
from deadpool.snapshot.transfer.frames import Kind, pack_frame
from deadpool.wire.credentials import Credentials, load_tls
from deadpool.wire.handshake import Handshake
from deadpool.wire.listener import PreauthLimit


def push_to(client: TransferClient, address, owner: Owner) -> int:
    return client.push(push_request(address, owner))


@contextlib.contextmanager
def dripping(sock: socket.socket, data: bytes, pause_s: float) -> Iterator[None]:
    """Sends byte by byte, until the peer closes the connection."""
    over = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            for byte in data:
                sock.sendall(bytes([byte]))
                if over.wait(pause_s):
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    yield
    over.set()
    thread.join()


# --- unauthenticated peers


def test_replayed_handshake_is_refused(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client()
    with socket.create_connection(holder.address) as sock:
        handshake = Handshake(MEMBER.secret, "client", "data")
        recorded = [handshake.opening()]
        sock.sendall(recorded[0])
        while not handshake.done:
            recorded.append(handshake.feed(sock.recv(handshake.needed, socket.MSG_WAITALL)))
            sock.sendall(recorded[-1])
    with socket.create_connection(holder.address) as sock:
        sock.settimeout(WAIT_S)
        heard = b""
        with contextlib.suppress(ConnectionError):
            sock.sendall(b"".join(recorded) + pack_frame(Kind.HELLO, GENERATION, []))
            while data := sock.recv(1000):
                heard += data
        assert len(heard) == len(recorded[0]), "a hello, no proof"
    push_to(client, holder.address, owner)


def test_unauthenticated_peer_that_sends_byte_by_byte_is_cut(make_holder):
    """It is cut before its hello is complete, which would be answered."""
    holder = make_holder(deadline_s=SILENCE_S)
    hello = Handshake(MEMBER.secret, "client", "data").opening()
    with socket.create_connection(holder.address) as sock, dripping(sock, hello, SILENCE_S / 4):
        sock.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionError):
            assert sock.recv(100) == b""


def test_crowd_of_silent_unauthenticated_peers_keeps_no_member_out(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(deadline_s=WAIT_S), make_client()
    holder.server._unauthenticated = PreauthLimit(limit=4, grace_s=0.05)
    with contextlib.ExitStack() as crowd:
        for _ in range(20):
            crowd.enter_context(socket.create_connection(holder.address))
        push_to(client, holder.address, owner)
        assert holder.outcome()[0] == "stored"
        assert len(holder.server._unauthenticated) <= 4


def test_truncated_frame_of_a_member_ends_its_connection_only(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client()
    stream = greeted(holder.address)
    stream._sock.sendall(pack_frame(Kind.PULL, GENERATION, [3, 1, 2, 7])[:-2])
    stream.close()
    push_to(client, holder.address, owner)
    assert holder.outcome()[0] == "stored"


def test_member_that_sends_a_frame_byte_by_byte_is_given_up(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(deadline_s=SILENCE_S), make_client()
    stream = greeted(holder.address)
    with dripping(stream._sock, pack_frame(Kind.PULL, GENERATION, [3, 1, 2, 7]), SILENCE_S / 4):
        with pytest.raises(TransferError, match=r"closed the connection|reset"):
            stream.receive()
        stream.close()
    holder.server.use_deadline(DEADLINE_S)  # whoever is only slow because the machine is busy is not given up
    push_to(client, holder.address, owner)


# --- TLS


@pytest.fixture
def tls_members() -> tuple[Credentials, Credentials]:
    """Returns the credentials of a holder and of an owner."""
    pytest.importorskip("cryptography")
    modes = [load_tls("ephemeral", serving=serving) for serving in (True, False)]
    holder, owner = (Credentials(MEMBER.secret, tls) for tls in modes)
    return holder, owner


def test_push_and_pull_through_tls(make_owner, make_holder, make_client, tls_members, stack):
    owner = make_owner()
    holder = make_holder(gives=owner, credentials=tls_members[0])
    client = make_client(credentials=tls_members[1])
    assert push_to(client, holder.address, owner) > owner.seal.extent.unique_bytes
    assert holder.outcome()[0] == "stored"
    assert holder.bytes_of(owner.seal, "unique") == owner.bytes_of("unique")
    segment = Segment.create("newcomer", GEOMETRY, 1)
    stack.callback(segment.close)
    client.pull(pull_request(holder.address, segment.slot(0), owner.seal.digest))
    with region(segment.slot(0), GEOMETRY, owner.seal.extent, "unique") as fetched:
        assert bytes(fetched) == owner.bytes_of("unique")


def test_snapshot_cannot_be_read_on_the_wire(make_owner, make_holder, make_client, tls_members):
    """Without TLS it can be read, which shows that this test would find it."""
    owner = make_owner()
    needle = owner.bytes_of("unique")[:64]
    for credentials, readable in ((tls_members, False), ((MEMBER, MEMBER), True)):
        holder, client = make_holder(credentials=credentials[0]), make_client(credentials=credentials[1], streams=1)
        with eavesdropping(holder.address) as (address, heard):
            push_to(client, address, owner)
        assert (needle in bytes(heard)) == readable


@contextlib.contextmanager
def eavesdropping(server) -> Iterator[tuple[tuple[str, int], bytearray]]:
    """Runs a relay that records what clients send."""
    heard, ended = bytearray(), []
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                heard.extend(data if keep else b"")
                target.sendall(data)

    def serve() -> None:
        near, far = listener.accept()[0], socket.create_connection(server)
        ended.extend([near, far])
        back = threading.Thread(target=pump, args=(far, near, False))
        back.start()
        pump(near, far, True)
        back.join()

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname(), heard
    for sock in ended:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    thread.join()
    for sock in [*ended, listener]:
        sock.close()


def test_members_that_do_not_agree_on_tls_do_not_talk(make_owner, make_holder, make_client, tls_members):
    owner = make_owner()
    for server, asking in ((tls_members[0], MEMBER), (MEMBER, tls_members[1])):
        holder, client = make_holder(credentials=server), make_client(credentials=asking, deadline_s=SILENCE_S)
        with pytest.raises(TransferError):
            push_to(client, holder.address, owner)
        assert holder.opened.empty()


def test_fence_cuts_a_push_through_tls(make_owner, make_holder, make_client, tls_members):
    owner = make_owner()
    holder, client = make_holder(credentials=tls_members[0]), make_client(credentials=tls_members[1])
    push_to(client, holder.address, owner)
    holder.server.fence(GENERATION.next(GENERATION.term))
    with pytest.raises(TransferError):
        push_to(client, holder.address, owner)
