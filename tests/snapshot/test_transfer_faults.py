"""Peers that die, fall silent, belong to another generation or do not belong at all."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading

import pytest
from snapshot_nodes import (
    GENERATION,
    GEOMETRY,
    SILENCE_S,
    WAIT_S,
    Owner,
    accept_greeted,
    greeted,
    pull_request,
    push_half,
    push_request,
)
from ways import WAYS, opened

from deadpool.errors import TransferError, WireError
from deadpool.protocol.identity import Generation
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import pack_seal
from deadpool.snapshot.transfer import TransferClient
from deadpool.snapshot.transfer.frames import Kind, chunks_of, pack_chunk, pack_frame
from deadpool.wire.credentials import Credentials
from deadpool.wire.handshake import HELLO_BYTES, NONCE_BYTES, PROOF_BYTES


@pytest.fixture(params=WAYS, scope="module")
def transports(request):
    with opened(request.param) as transports:
        yield transports


def push_to(client: TransferClient, address, owner: Owner, generation: Generation = GENERATION) -> None:
    client.push(push_request(address, owner, generation=generation))


# --- processes


def test_push_to_another_process(make_owner, make_client, make_peer):
    owner, client, peer = make_owner(), make_client(), make_peer("hold")
    push_to(client, peer.read_line(), owner)
    assert peer.read_line() == ["stored", 3, "", True]


def test_sender_killed_in_the_middle_of_a_push(make_owner, make_holder, make_client, make_peer):
    owner, holder, client = make_owner(), make_holder(), make_client()
    push_to(client, holder.address, owner)
    holder.outcome()
    peer = make_peer("half-push", holder.address[0], str(holder.address[1]))
    assert peer.read_line() == ["half"]
    assert holder.outcomes.empty()
    os.kill(peer.process.pid, signal.SIGKILL)
    assert holder.outcome()[0] == "dropped"
    assert holder.header() is None
    push_to(client, holder.address, owner)
    assert holder.outcome()[0] == "stored"


@pytest.mark.parametrize(
    ("mode", "deadline_s", "reason"),
    [("die-on-push", 3600.0, ""), ("hang-on-push", SILENCE_S, f"silent for {SILENCE_S:g} s")],
)
def test_receiver_dies_or_falls_silent(make_owner, make_client, make_peer, mode, deadline_s, reason):
    """A death is noticed without a deadline: this one is longer than a test may take."""
    owner, client, peer = make_owner(), make_client(deadline_s=deadline_s, streams=1), make_peer(mode)
    address = peer.read_line()
    with pytest.raises(TransferError, match=f"127.0.0.1:{address[1]}: {reason}"):
        push_to(client, address, owner)


# --- silence


def test_sender_falls_silent(make_owner, make_holder):
    owner, holder = make_owner(), make_holder(deadline_s=SILENCE_S)
    stream = push_half(holder.address, owner)
    word, _, reason = holder.outcome()
    assert (word, holder.header()) == ("dropped", None)
    assert f"silent for {SILENCE_S:g} s" in reason
    stream.close()


def test_sender_falls_silent_between_chunks(make_owner, make_holder):
    owner, holder = make_owner(), make_holder(deadline_s=SILENCE_S)
    stream = greeted(holder.address)
    stream.send(Kind.PUSH, [b"t" * 16, pack_seal(owner.seal), [10_000, 20 << 20, 9 << 20]])
    stream.expect(Kind.ACCEPT)
    word, _, reason = holder.outcome()
    assert word == "dropped"
    assert "no data" in reason
    stream.close()


def silent_source(stack, owner: Owner):
    """A source that finds the snapshot, sends half of the first chunk asked for, and then nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    halfway, streams = threading.Event(), []

    def serve() -> None:
        stream = accept_greeted(listener)
        streams.append(stream)
        stream.receive()
        stream.send(Kind.FOUND, [pack_seal(owner.seal)])
        stream.receive()
        chunk = chunks_of(owner.seal.extent, ("unique",))[0]
        frame = pack_frame(Kind.DATA, GENERATION, pack_chunk(chunk), chunk.size)
        stream._sock.sendall(frame + bytes(chunk.size // 2))
        halfway.set()

    thread = threading.Thread(target=serve)
    thread.start()
    stack.callback(lambda: [stream.close() for stream in streams])
    stack.callback(listener.close)
    stack.callback(thread.join)
    return listener.getsockname(), halfway


def pull_from(client: TransferClient, address, owner: Owner, segment: Segment) -> None:
    client.pull(pull_request(address, segment.slot(0), owner.seal.digest))


def test_source_falls_silent(make_owner, make_client, stack):
    owner, client = make_owner(), make_client(deadline_s=SILENCE_S, streams=1)
    segment = Segment.create("newcomer", GEOMETRY, 1)
    stack.callback(segment.close)
    address, _ = silent_source(stack, owner)
    with pytest.raises(TransferError, match=f"{address[1]}: silent for {SILENCE_S:g} s"):
        pull_from(client, address, owner, segment)


# --- generations


def test_fence_cuts_a_running_push_and_returns_after_its_writer(make_owner, make_holder):
    owner, holder = make_owner(), make_holder(deadline_s=WAIT_S)
    stream = push_half(holder.address, owner)
    holder.opened.get(timeout=WAIT_S)
    writers = list(holder.server._threads.values())
    holder.server.fence(GENERATION.next(GENERATION.term))
    assert not any(thread.is_alive() for thread in writers)
    word, _, reason = holder.outcomes.get_nowait()
    assert word == "dropped"
    assert "fenced by 1.4" in reason
    assert holder.header() is None
    stream.close()


def test_fence_cuts_a_running_pull_and_returns_after_its_writer(make_owner, make_client, stack):
    owner, client = make_owner(), make_client(deadline_s=WAIT_S, streams=1)
    segment = Segment.create("newcomer", GEOMETRY, 1)
    stack.callback(segment.close)
    address, halfway = silent_source(stack, owner)
    errors: list[str] = []

    def run() -> None:
        try:
            pull_from(client, address, owner, segment)
        except TransferError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    assert halfway.wait(WAIT_S)
    client.fence(GENERATION.next(GENERATION.term))
    thread.join(WAIT_S)
    assert "fenced by 1.4" in errors[0]


def test_fence_leaves_its_own_generation_alone(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client()
    push_to(client, holder.address, owner)
    holder.server.fence(GENERATION)
    client.fence(GENERATION)
    push_to(client, holder.address, owner)
    assert len(holder.server._threads) == 2


def test_older_generation_is_refused_by_the_server(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client()
    holder.server.fence(Generation(2, 0))
    with pytest.raises(TransferError, match=r"refused: generation 1.3 is over, this is 2.0"):
        push_to(client, holder.address, owner)
    push_to(client, holder.address, owner, Generation(2, 0))
    assert holder.opened.get_nowait()[1] == Generation(2, 0)


def test_older_generation_is_refused_by_the_client(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client()
    client.fence(GENERATION.next(GENERATION.term))
    with pytest.raises(TransferError, match=r"generation 1.3 is over"):
        push_to(client, holder.address, owner)


def test_frame_of_another_generation_on_a_stream_ends_it(make_holder):
    holder = make_holder()
    stream = greeted(holder.address)
    stream.generation = GENERATION.next(GENERATION.term)
    stream.send(Kind.PULL, [3, 1, 2, 7])
    with pytest.raises(TransferError, match=r"closed the connection|reset"):
        stream.receive()
    stream.close()


# --- unauthenticated peers


def test_wrong_secret_is_refused_and_learns_nothing(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client(credentials=Credentials(b"x" * 32))
    with pytest.raises(TransferError, match=r"closed the connection|reset"):
        push_to(client, holder.address, owner)
    assert holder.opened.empty()


def test_server_without_the_secret_is_not_talked_to(make_owner, make_client, stack):
    owner, client = make_owner(), make_client()
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    heard: list[bytes] = []

    def impostor() -> None:
        sock, _ = listener.accept()
        with sock:
            hello = sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
            sock.sendall(hello[:-NONCE_BYTES] + bytes(NONCE_BYTES))
            proof = sock.recv(PROOF_BYTES, socket.MSG_WAITALL)
            sock.sendall(proof)  # a reflected proof: right secret, wrong role
            heard.append(sock.recv(1))

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(TransferError, match="does not know the job's secret"):
        push_to(client, listener.getsockname(), owner)
    thread.join()
    assert heard == [b""]


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 50, b"\0" * 100, b"DEADPOOL" + b"\xff" * 64, b""])
def test_garbage_does_not_disturb(make_owner, make_holder, make_client, garbage):
    owner, holder, client = make_owner(), make_holder(), make_client()
    stream = push_half(holder.address, owner)
    with socket.create_connection(holder.address) as sock:
        sock.settimeout(WAIT_S)
        heard = b""
        with contextlib.suppress(OSError):  # the server may close the connection meanwhile
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(1000):
                heard += data
        assert len(heard) <= 40
    assert holder.outcomes.empty()
    stream.close()
    assert holder.outcome()[0] == "dropped"
    push_to(client, holder.address, owner)


@pytest.mark.parametrize(
    "frame",
    [
        b"\0" * 40,
        pack_frame(Kind.PUSH, GENERATION, []),
        pack_frame(Kind.PUSH, GENERATION, [b"t" * 16, [-1] * 11, [1, 1, 1]]),
        pack_frame(Kind.PUSH, GENERATION, [b"t" * 16, [1] * 5 + [2**62] * 3 + [0] * 3, [1, 1, 1]]),
        pack_frame(Kind.DATA, GENERATION, [b"u" * 16, 0, 0, 1], 1),
        pack_frame(Kind.DATA, GENERATION, [b"u" * 16, 0, 0, 1], 1 << 60),
        pack_frame(Kind.READ, GENERATION, ["a"] * 7),
        pack_frame(Kind.STORED, GENERATION, []),
    ],
)
def test_nonsense_from_a_member_ends_its_connection_only(make_owner, make_holder, make_client, frame):
    owner, holder, client = make_owner(), make_holder(), make_client()
    stream = greeted(holder.address)
    stream._sock.sendall(frame)
    with pytest.raises(TransferError, match=r"closed the connection|reset"):
        stream.receive()
    stream.close()
    push_to(client, holder.address, owner)
    assert holder.header() == owner.seal


def test_same_bytes_twice_end_the_transfer(make_owner, make_holder):
    owner, holder = make_owner(), make_holder()
    first = push_half(holder.address, owner)
    holder.opened.get(timeout=WAIT_S)
    second = greeted(holder.address)
    chunk = chunks_of(owner.seal.extent, ("unique",))[0]
    second._sock.sendall(pack_frame(Kind.DATA, GENERATION, [b"t" * 16, *pack_chunk(chunk)], chunk.size))
    with pytest.raises((TransferError, WireError), match=r"closed the connection|reset"):
        second.receive()
    second.close()
    first.close()
    assert holder.outcome()[0] == "dropped"
