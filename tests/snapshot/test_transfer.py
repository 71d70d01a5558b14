from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from msgspec import structs
from snapshot_nodes import (
    EXTENT,
    GENERATION,
    GEOMETRY,
    SMALL_EXTENT,
    VERSION,
    WAIT_S,
    pull_request,
    push_request,
)
from ways import WAYS, opened

from deadpool.errors import ArenaError, TransferError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.identity import Version
from deadpool.protocol.seal import Extent, Geometry
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import read_seal, region
from deadpool.snapshot.transfer import Midway, PeerRefused


@pytest.fixture(params=WAYS, scope="module")
def transports(request):
    with opened(request.param) as transports:
        yield transports


def push(client, holder, owner, *, full=True, generation=GENERATION) -> int:
    return client.push(push_request(holder.address, owner, full=full, generation=generation))


def pull(client, source, into, regions, expect, *, rank=3, version=VERSION):
    return client.pull(pull_request(source.address, into, expect, *regions, rank=rank, version=version))


@pytest.fixture
def newcomer(stack, transports):
    segment = Segment.create("newcomer", GEOMETRY, 1)
    stack.callback(segment.close)
    transports.add(segment)
    stack.callback(transports.drop, segment)
    return segment


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_push_of_a_full_slot(make_owner, make_holder, make_client, streams):
    owner, holder, client = make_owner(), make_holder(), make_client(streams=streams)
    push(client, holder, owner)
    assert holder.outcome() == ("stored", owner.seal, "")
    assert holder.header() == owner.seal
    assert holder.opened.get_nowait() == (owner.seal, GENERATION, GEOMETRY)
    for name in ("record", "unique", "replica"):
        assert holder.bytes_of(owner.seal, name) == owner.bytes_of(name)


def test_push_without_the_replica_region_needs_no_room_for_it(make_owner, make_holder, make_client):
    owner, client = make_owner(), make_client()
    holder = make_holder(geometry=GEOMETRY.without_replica())
    push(client, holder, owner, full=False)
    expected = structs.replace(owner.seal, full=False)
    assert holder.outcome() == ("stored", expected, "")
    assert holder.header() == expected
    assert holder.bytes_of(expected, "unique") == owner.bytes_of("unique")


@pytest.mark.parametrize("extent", [EXTENT, SMALL_EXTENT, Extent(record_bytes=1, unique_bytes=0, replica_bytes=0)])
def test_midway_the_holder_cannot_have_everything(make_owner, make_holder, make_client, extent):
    owner, holder, client = make_owner(extent=extent), make_holder(), make_client(streams=2)
    seen = []

    def midway() -> None:
        holder.opened.get(timeout=WAIT_S)
        time.sleep(0.2)  # what was sent has arrived by then
        seen.append((holder.header(), holder.outcomes.empty()))

    client.push(push_request(holder.address, owner), Midway(midway))
    assert seen == [(None, True)]
    assert holder.outcome() == ("stored", owner.seal, "")


@pytest.mark.parametrize("extent", [EXTENT, SMALL_EXTENT, Extent(record_bytes=1, unique_bytes=0, replica_bytes=0)])
def test_bit_that_flips_on_the_wire_is_found_by_the_holder(make_owner, make_holder, make_client, extent):
    owner, holder, client = make_owner(extent=extent), make_holder(), make_client(streams=2)
    before = {name: owner.bytes_of(name) for name in ("record", "unique", "replica")}
    with pytest.raises(PeerRefused) as refused:
        client.push(push_request(holder.address, owner), Midway(lambda: None, flips=True))
    assert refused.value.refusal is Refusal.DAMAGED
    assert holder.outcome()[0] == "dropped" and holder.header() is None
    assert {name: owner.bytes_of(name) for name in before} == before, "it is right where it lies"
    push(client, holder, owner)
    assert holder.outcome() == ("stored", owner.seal, "")


@pytest.mark.parametrize("full", [True, False])
def test_push_returns_the_bytes_it_sent(make_owner, make_holder, make_client, full):
    """This holds for the second push of a channel too: what its streams carried before does not count."""
    owner, holder, client = make_owner(), make_holder(), make_client(streams=2)
    bulk = EXTENT.record_bytes + EXTENT.unique_bytes + (EXTENT.replica_bytes if full else 0)
    for _ in range(2):
        sent = push(client, holder, owner, full=full)
        holder.outcome()
        assert bulk < sent < bulk + 8192, "frames and metadata of windows add little"


def test_pushes_of_every_step_share_their_streams(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(extent=SMALL_EXTENT), make_holder(), make_client()
    for _ in range(20):
        push(client, holder, owner)
        assert holder.outcome()[0] == "stored"
    assert len(holder.server._threads) == 1


@pytest.mark.parametrize(
    "extent",
    [
        Extent(record_bytes=0, unique_bytes=0, replica_bytes=0),
        Extent(record_bytes=1, unique_bytes=4096, replica_bytes=3),
        Extent(record_bytes=10_000, unique_bytes=8 << 20, replica_bytes=0),
    ],
)
def test_odd_sizes(make_owner, make_holder, make_client, extent):
    owner, holder, client = make_owner(extent=extent), make_holder(), make_client()
    push(client, holder, owner)
    assert holder.header() == owner.seal
    assert holder.bytes_of(owner.seal, "unique") == owner.bytes_of("unique")


def test_several_ranks_push_to_one_holder_at_once(make_owner, make_holder, make_client):
    owners = [make_owner(rank=rank, seed=rank) for rank in range(3)]
    holders, client = [make_holder() for _ in owners], make_client()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda pair: push(client, *pair), zip(holders, owners, strict=True)))
    for holder, owner in zip(holders, owners, strict=True):
        assert holder.header() == owner.seal


def test_refused_push_says_why_and_leaves_the_stream_usable(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(refuses="no slot is free"), make_client()
    for _ in range(2):
        with pytest.raises(TransferError, match="refused: no slot is free"):
            push(client, holder, owner)
    assert holder.outcomes.empty()


def test_slot_too_small_is_dropped(make_owner, make_holder, make_client):
    small = Geometry(record_capacity=10_000, unique_bytes=1, replica_bytes=0)
    owner, holder, client = make_owner(), make_holder(geometry=small), make_client()
    with pytest.raises(TransferError, match="no room for region 'unique'"):
        push(client, holder, owner)
    assert holder.outcome()[0] == "dropped"


@pytest.mark.parametrize("name", ["record", "unique", "replica"])
def test_damaged_byte_is_found_by_the_holder(make_owner, make_holder, make_client, name):
    owner, holder, client = make_owner(), make_holder(), make_client()
    owner.flip_a_byte(name)
    with pytest.raises(TransferError, match=f"{holder.address[1]} refused: damaged: region '{name}' has digest"):
        push(client, holder, owner)
    assert holder.outcome()[:2] == ("dropped", owner.seal)
    assert holder.header() is None
    owner.flip_a_byte(name)
    push(client, holder, owner)
    assert holder.outcome()[0] == "stored"


def test_overwriting_push_that_fails_leaves_no_old_header(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client()
    push(client, holder, owner)
    owner.flip_a_byte("unique")
    with pytest.raises(TransferError):
        push(client, holder, owner)
    assert holder.header() is None


def test_failed_record_of_a_stored_copy_drops_it(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client()

    def broken(seal):
        raise ArenaError("disk full")

    callbacks = replace(holder.server._callbacks, stored=broken)
    holder.server._callbacks = callbacks
    with pytest.raises(TransferError, match="could not record it: disk full"):
        push(client, holder, owner)
    assert holder.outcome()[0] == "dropped"
    assert holder.header() is None


@pytest.mark.parametrize("regions", [("record", "unique"), ("replica",), ("record", "unique", "replica")])
def test_pull_of_regions(make_owner, make_holder, make_client, newcomer, regions):
    owner = make_owner()
    source, client = make_holder(gives=owner), make_client()
    seal = pull(client, source, newcomer.slot(0), regions, owner.seal.digest)
    assert seal == owner.seal
    for name in regions:
        assert bytes(region(newcomer.slot(0), GEOMETRY, seal.extent, name)) == owner.bytes_of(name)
    assert read_seal(newcomer.slot(0)) is None


def test_replica_is_checked_against_the_lost_ranks_own_digest(make_owner, make_holder, make_client, newcomer):
    lost, replica = make_owner(rank=3, seed=1), make_owner(rank=5, seed=2)
    source, client = make_holder(gives=replica), make_client()
    with pytest.raises(TransferError, match=rf"{source.address[1]}: .*rank 5 is damaged: region 'replica'"):
        pull(client, source, newcomer.slot(0), ("replica",), lost.seal.digest, rank=5)
    same = structs.replace(lost.seal.digest, replica=replica.seal.digest.replica)
    pull(client, source, newcomer.slot(0), ("replica",), same, rank=5)


def test_pull_of_damaged_bytes_names_the_source(make_owner, make_holder, make_client, newcomer):
    owner = make_owner()
    owner.flip_a_byte("unique")
    source, client = make_holder(gives=owner), make_client()
    with pytest.raises(TransferError, match=f"127.0.0.1:{source.address[1]}: .* damaged: region 'unique'"):
        pull(client, source, newcomer.slot(0), ("record", "unique"), owner.seal.digest)
    pull(client, source, newcomer.slot(0), ("record",), owner.seal.digest)


def test_pull_of_what_is_not_there(make_owner, make_holder, make_client, newcomer):
    owner = make_owner()
    source, client = make_holder(gives=owner), make_client()
    of_another_generation = Version(GENERATION, VERSION.number)
    with pytest.raises(TransferError, match=r"refused: no snapshot v7@1.3 of rank 3 here"):
        pull(client, source, newcomer.slot(0), ("record",), owner.seal.digest, version=of_another_generation)


def test_pull_of_a_region_that_the_copy_lacks(make_owner, make_holder, make_client, newcomer):
    owner = make_owner()
    source, client = make_holder(gives=owner), make_client()
    owner.seal = structs.replace(owner.seal, full=False)
    with pytest.raises(TransferError, match="the peer's copy has no region 'replica'"):
        pull(client, source, newcomer.slot(0), ("replica",), owner.seal.digest)


def test_pull_into_a_slot_of_another_shape(make_owner, make_holder, make_client, newcomer):
    owner = make_owner()
    source, client = make_holder(gives=owner), make_client()
    small = structs.replace(GEOMETRY, unique_bytes=10)
    with pytest.raises(TransferError, match=f"room for {10}"):
        client.pull(pull_request(source.address, newcomer.slot(0), owner.seal.digest, geometry=small))


def test_connection_refused(make_owner, make_client, make_holder):
    owner, client, holder = make_owner(), make_client(), make_holder()
    holder.server.close()
    with pytest.raises(TransferError, match=f"{holder.address[1]}: cannot connect"):
        push(client, holder, owner)


def test_next_push_after_a_lost_connection_connects_again(make_owner, make_holder, make_client):
    owner, holder, client = make_owner(), make_holder(), make_client()
    push(client, holder, owner)
    for connection in tuple(holder.server._threads):
        connection.cut("test")
    with pytest.raises(TransferError):
        push(client, holder, owner)
    push(client, holder, owner)
    assert holder.header() == owner.seal


def test_extent_is_the_sources_own(make_owner, make_holder, make_client, newcomer):
    extent = structs.replace(EXTENT, record_bytes=12, unique_bytes=5 << 20)
    owner = make_owner(extent=extent)
    source, client = make_holder(gives=owner), make_client()
    seal = pull(client, source, newcomer.slot(0), ("record", "unique"), owner.seal.digest)
    assert seal.extent == extent


def test_no_thread_is_left_when_a_peer_connects_and_says_nothing(make_holder):
    holder = make_holder(deadline_s=WAIT_S)
    with socket.create_connection(holder.address) as sock:
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(8)
        holder.close()
