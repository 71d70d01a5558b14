"""Bytes go by NIXL, and whatever becomes of its processes, nothing is lost and nothing is written after a fence."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from snapshot_nodes import GENERATION, GEOMETRY, WAIT_S, pull_request, push_request
from waiting import wait_until
from ways import BY_NIXL, NEEDS_NIXL, opened

from deadpool.errors import TransferError
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import read_seal, region
from deadpool.snapshot.transfer import Midway

pytestmark = NEEDS_NIXL
REGIONS = ("record", "unique", "replica")


@pytest.fixture
def transports():
    """Each test has processes of its own, since it may end them."""
    with opened(BY_NIXL) as transports:
        yield transports


def assert_stored(holder, owner) -> None:
    assert holder.outcome() == ("stored", owner.seal, "")
    assert holder.header() == owner.seal
    assert all(holder.bytes_of(owner.seal, name) == owner.bytes_of(name) for name in REGIONS)


def bulk(owner) -> int:
    return sum(len(owner.bytes_of(name)) for name in REGIONS)


def test_push_is_read_by_the_holder(transports, make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client()
    before = transports.server.bytes_read
    client.push(push_request(holder.address, owner))
    assert_stored(holder, owner)
    assert transports.server.bytes_read - before == bulk(owner)


def test_pull_is_read_by_the_newcomer(transports, make_owner, make_holder, make_client, stack):
    owner = make_owner()
    source, client = make_holder(gives=owner), make_client()
    segment = Segment.create("newcomer", GEOMETRY, 1)
    stack.callback(segment.close)
    transports.add(segment)
    stack.callback(transports.drop, segment)
    before = transports.client.bytes_read
    client.pull(pull_request(source.address, segment.slot(0), owner.seal.digest, *REGIONS))
    for name in REGIONS:
        assert bytes(region(segment.slot(0), GEOMETRY, owner.seal.extent, name)) == owner.bytes_of(name)
    assert transports.client.bytes_read - before == bulk(owner)


MOMENTS = ("before", "offered", "midway", "first read", "third read")


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("moment", MOMENTS)
def test_process_killed_or_stopped(transports, make_owner, make_holder, make_client, moment, sign):
    """In a push: that of the node whose memory is read at even moments, that of the reader at odd ones."""
    owner, holder, client = make_owner(seed=MOMENTS.index(moment)), make_holder(), make_client()
    victim = transports.both[MOMENTS.index(moment) % 2]
    process = victim.pid
    hit = _once(lambda: os.kill(process, sign))
    reads = iter(("first read", "second read", "third read"))
    transports.server.before_read = lambda: next(reads, "") == moment and hit()
    if moment == "before":
        hit()
    midway = Midway(lambda: hit()) if moment == "midway" else None
    if moment == "offered":
        holder.server._callbacks = _when_opened(holder.server._callbacks, hit)
    client.push(push_request(holder.address, owner), midway)
    assert_stored(holder, owner)
    wait_until(lambda: victim.pid not in (None, process), "another process in place of the one that was hit")
    again = make_owner(seed=17)  # this waits until both work
    client.push(push_request(holder.address, again))
    assert_stored(holder, again)


def _once(action):
    done = threading.Event()

    def act() -> None:
        if not done.is_set():
            done.set()
            action()

    return act


def _when_opened(callbacks, action):
    from dataclasses import replace

    def open(seal, generation, geometry):
        action()
        return callbacks.open(seal, generation, geometry)

    return replace(callbacks, open=open)


def test_fence_ends_a_read_before_it_returns(transports, make_owner, make_holder, make_client):
    """The source is stopped, so the read of the holder does not end by itself."""
    owner, holder, client = make_owner(), make_holder(), make_client(streams=1)
    source, reader, reading = transports.client.pid, transports.server.pid, threading.Event()
    transports.server.before_read = lambda: (os.kill(source, signal.SIGSTOP), reading.set())
    errors: list[TransferError] = []

    def push() -> None:
        try:
            client.push(push_request(holder.address, owner))
        except TransferError as error:
            errors.append(error)

    thread = threading.Thread(target=push)
    thread.start()
    assert reading.wait(WAIT_S)
    holder.server.fence(GENERATION.next(GENERATION.term))
    slot = holder.segment.slot(0)
    slot[:] = b"\5" * len(slot)  # whoever writes now writes for an older generation
    os.kill(source, signal.SIGCONT)
    thread.join(WAIT_S)
    assert errors and holder.outcome()[0] == "dropped"
    assert not _lives(reader), "the process that was reading is reaped"
    wait_until(lambda: transports.server.pid not in (None, reader), "another process")
    transports.wait()
    assert bytes(slot) == b"\5" * len(slot)
    assert read_seal(slot) is None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_other_memory_of_the_same_address_is_not_read(transports, make_owner, make_holder, make_client):
    """A segment that was dropped leaves its address behind: what a peer still knows of it leads nowhere."""
    owner, holder, client = make_owner(), make_holder(), make_client()
    client.push(push_request(holder.address, owner))
    assert_stored(holder, owner)
    window = transports.client.window(owner.segment.fd, owner.offset, 4096)
    transports.client.drop(owner.segment)
    assert transports.client.window(owner.segment.fd, owner.offset, 4096) is None
    transports.client.add(owner.segment)
    transports.wait()
    assert transports.client.window(owner.segment.fd, owner.offset, 4096).address != window.address
    client.push(push_request(holder.address, owner))
    assert_stored(holder, owner)
