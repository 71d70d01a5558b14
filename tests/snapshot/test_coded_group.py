"""Coded groups over real sockets: every pattern of losses, damage in any block, and what breaks off in the middle."""

from __future__ import annotations

import itertools
import socket
import threading
from contextlib import closing
from dataclasses import replace as changed

import pytest
from coded_nodes import PIECE, CodedGroup, shard, smaller_pieces
from msgspec import structs
from snapshot_nodes import GENERATION, WAIT_S

from deadpool.errors import TransferError
from deadpool.protocol.features.coding.stripes import Stripes
from deadpool.protocol.seal import REGIONS
from deadpool.snapshot.arena.slot import read_seal, write_seal
from deadpool.snapshot.erasure.galois import NumpyCoder

SILENCE_S = 5.0
SHARDS = [
    shard(700, 9 * PIECE + 3, 2 * PIECE),
    shard(40, 20 * PIECE, PIECE - 1, record_capacity=3 * PIECE),
    shard(1, 0, 0),
    shard(PIECE, 7 * PIECE + 511, PIECE + 1),
    shard(0, PIECE, 0, record_capacity=5),
    shard(PIECE + 1, 3 * PIECE - 1, 0),
    shard(300, 11 * PIECE, 0, record_capacity=900),
    shard(3, 1, 1),
    shard(513, 12 * PIECE + 1, 4 * PIECE),
    shard(256, 5 * PIECE, PIECE),
]
"""Unequal, with regions that are empty, around the borders of pieces, or shorter than their room."""


@pytest.fixture
def small_pieces(monkeypatch):
    with smaller_pieces(monkeypatch):
        yield


@pytest.fixture
def coded(stack, small_pieces):
    def make(data_blocks: int, parities: int, **options) -> CodedGroup:
        return stack.enter_context(closing(CodedGroup(parities, SHARDS[: data_blocks + parities], **options)))

    return make


def loss_patterns(members: int, parities: int) -> list[tuple[int, ...]]:
    return [lost for count in range(1, parities + 1) for lost in itertools.combinations(range(members), count)]


@pytest.mark.parametrize(
    "scheme",
    [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (4, 2),
        *(pytest.param(each, marks=pytest.mark.thorough) for each in ((8, 2), (4, 3))),
    ],
)
def test_any_lost_members_are_rebuilt(coded, scheme):
    group = coded(*scheme)
    group.protect()
    for lost in loss_patterns(sum(scheme), scheme[1]):
        for member in lost:
            with closing(group.newcomer(member)) as newcomer:
                newcomer.rebuild(gone=lost)
                assert newcomer.has_everything(), (lost, member)
                assert newcomer.damaged == newcomer.failed == []
                assert read_seal(newcomer.segment.slot(0)) is None, "the agent writes the header"


def test_parity_takes_its_share_of_memory_and_no_more():
    equal = [shard(1000, 40 << 20, 0)] * 5
    with closing(CodedGroup(1, equal)) as group:
        largest = max(node.layout.size_bytes for node in group.nodes)
    assert largest <= (40 << 20) / 4 + 2 * (4 << 20), "a quarter, and a piece for rounding"


def test_without_the_replica_region(coded):
    group = coded(4, 2, full=False)
    group.protect()
    newcomer = group.newcomer(3)
    newcomer.rebuild(gone=[0])
    assert newcomer.has_everything()
    assert newcomer.bytes_of("replica") == b"\x55" * len(newcomer.bytes_of("replica")), "that comes from elsewhere"


def test_progress_is_told_in_order_and_reaches_the_end(coded):
    group = coded(4, 1)
    group.protect()
    newcomer = group.newcomer(1)
    newcomer.rebuild()
    for name in REGIONS:
        steps = [leading for region, leading in newcomer.progress if region == name]
        assert steps == sorted(steps) and steps[0] == 0
        assert steps[-1] == len(newcomer.lost.bytes_of(name))


def test_back_ends_can_be_mixed(coded):
    group = coded(4, 2, coder=NumpyCoder())
    group.protect()
    newcomer = group.newcomer(0)
    newcomer.rebuild(gone=[1])
    assert newcomer.has_everything()


def test_pieces_of_real_size(stack):
    shards = [shard(70_000, size << 20, 0) for size in (21, 3, 9, 0, 17)]
    group = stack.enter_context(closing(CodedGroup(1, shards)))
    group.protect()
    for member in range(5):
        with closing(group.newcomer(member)) as newcomer:
            newcomer.rebuild()
            assert newcomer.has_everything()


# --- damage


def flip(view: memoryview) -> None:
    view[len(view) // 3] ^= 0x10


def blocks_of(group: CodedGroup, away: set[int]) -> list[tuple[int, memoryview]]:
    """Every row of a parity and every piece that other members have, with the node that has it."""
    found = []
    for node in group.nodes:
        if node.member in away:
            continue
        found += [(node.member, row) for row in node.parity._rows.values()]
        slot = node.segment.slot(0)
        for name in REGIONS:
            start, size = node.geometry.offset(name), len(node.bytes_of(name))
            found += [(node.member, slot[start + at : start + min(at + PIECE, size)]) for at in range(0, size, PIECE)]
    return found


def blocks_beside(group: CodedGroup, member: int, number: int) -> tuple[tuple[int, memoryview], tuple[int, memoryview]]:
    """The first parity of a piece's row, and another member's piece in that row, each with the member that has it."""
    coding = Stripes(group.group)
    place = coding.place_of(member, number)
    keeper = coding.parity_members(place.stripe)[0]
    for other in coding.data_members(place.stripe):
        node = group.nodes[other]
        piece = node.contribution(keeper).piece_at(place)
        if other != member and piece is not None:
            start = node.geometry.offset(piece.region) + piece.offset
            view = node.segment.slot(0)[start : start + piece.size]
            return (keeper, group.nodes[keeper].parity._rows[place]), (other, view)
    raise AssertionError("no other member has bytes in that row")


def test_flipped_bit_in_any_block_is_found_and_worked_around(coded):
    group = coded(4, 2)
    group.protect()
    found = 0
    for member, block in blocks_of(group, {1}):
        flip(block)
        with closing(group.newcomer(1)) as newcomer:
            newcomer.rebuild()
            assert newcomer.has_everything()
            assert {node for node, _ in newcomer.damaged} <= {f"n{member}"}
            assert newcomer.failed == []
            found += bool(newcomer.damaged)
        flip(block)
    assert found > 20, "most blocks were needed"


def test_flipped_bits_in_two_nodes_at_once_where_one_spare_block_is_left(coded):
    group = coded(4, 3)
    group.protect()
    parity, data = blocks_beside(group, 1, 4)
    flip(parity[1])
    flip(data[1])
    newcomer = group.newcomer(1)
    newcomer.rebuild()
    assert newcomer.has_everything()
    assert {node for node, _ in newcomer.damaged} == {f"n{parity[0]}", f"n{data[0]}"}


def test_damage_that_no_spare_block_makes_up_for_says_where_it_is(coded):
    group = coded(3, 1)
    group.protect()
    _, (member, block) = blocks_beside(group, 1, 4)
    flip(block)
    newcomer = group.newcomer(1)
    with pytest.raises(TransferError, match=r"v7@1.2 of rank 11 cannot be rebuilt: piece \d+ needs 3 blocks") as told:
        newcomer.rebuild()
    assert f"n{member} (snapshot of member {member}): the block of piece 4 is damaged" in str(told.value)
    assert [node for node, _ in newcomer.damaged] == [f"n{member}"]


def test_parity_that_was_damaged_before_it_was_sealed_is_found(coded):
    """Its digests are those of the damaged bytes. The digests of the lost pieces tell."""
    group = coded(4, 2)
    for node in group.nodes:
        for other in group.nodes:
            if other is not node:
                node.contribute(other)
    for row in group.nodes[2].parity._rows.values():
        row[0] ^= 1
    for node in group.nodes:
        node.parity.seal()
    newcomer = group.newcomer(1)
    newcomer.rebuild()
    assert newcomer.has_everything()
    assert {node for node, _ in newcomer.damaged} == {"n2"}


def test_node_that_is_gone_is_replaced_by_another_block(coded):
    group = coded(4, 2)
    group.protect()
    group.nodes[4].server.close()
    newcomer = group.newcomer(1)
    newcomer.rebuild()
    assert newcomer.has_everything()
    assert {node for node, _ in newcomer.failed} == {"n4"}


def test_source_that_lost_its_parity_in_the_middle_is_replaced(coded):
    group = coded(4, 2)
    group.protect()
    looked, real = [], group.nodes[2].parities

    def find(name):
        looked.append(name)
        return real.find(name) if len(looked) < 3 else None

    group.nodes[2].parities = changed(real, find=find)
    newcomer = group.newcomer(1)
    newcomer.rebuild()
    assert newcomer.has_everything()
    assert [node for node, _ in newcomer.failed] == ["n2"]


def test_source_that_never_answers_is_done_without(coded):
    """A machine that was stopped: the kernel still takes connections for it."""
    group = coded(4, 2)
    group.protect()
    newcomer = group.newcomer(1)
    newcomer.client.use_deadline(SILENCE_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sources = [source for node in group.nodes if node.member != 1 for source in node.sources()]
        address = silent.getsockname()[:2]
        newcomer.rebuild(sources=[changed(each, address=address) if each.member == 4 else each for each in sources])
    assert newcomer.has_everything()
    assert {node for node, _ in newcomer.failed} == {"n4"}


def test_source_that_falls_silent_in_the_middle_is_done_without(coded):
    group = coded(4, 2)
    group.protect()
    looked, over, real = [], threading.Event(), group.nodes[3].server._callbacks

    def find(rank, version):
        looked.append(rank)
        if len(looked) > 2:
            over.wait(WAIT_S)
        return real.find(rank, version)

    group.nodes[3].server._callbacks = changed(real, find=find)
    newcomer = group.newcomer(1)
    newcomer.client.use_deadline(SILENCE_S)
    newcomer.rebuild()
    over.set()
    assert len(looked) > 2, "it was silent"
    assert newcomer.has_everything()
    assert [node for node, _ in newcomer.failed] == ["n3"]


def test_too_few_sources_are_named(coded):
    group = coded(4, 1)
    group.protect()
    group.nodes[2].server.close()
    with pytest.raises(
        TransferError, match=r"rank 11 cannot be rebuilt: .*n2 \((parity|snapshot) of member 2\): .*refused"
    ):
        group.newcomer(1).rebuild()
    with pytest.raises(TransferError, match="no source is left"):
        group.newcomer(1).rebuild(sources=[])
    with pytest.raises(TransferError, match="no parity of its group is left"):
        group.newcomer(1).rebuild(sources=[node.sources()[0] for node in group.nodes if node.member not in (1, 2)])


def test_parity_of_another_snapshot_is_not_used(coded):
    """The lost rank's seal, which the plan carries, decides."""
    group = coded(2, 1)
    group.protect()
    newcomer = group.newcomer(1)
    newcomer.lost.seal = structs.replace(newcomer.lost.seal, digest=group.nodes[0].seal.digest)
    with pytest.raises(TransferError, match="no parity of its group is left"):
        newcomer.rebuild()


def test_unsealed_parity_is_not_read(coded):
    group = coded(1, 1)
    group.nodes[1].contribute(group.nodes[0])
    with pytest.raises(TransferError, match=r"n0 .*refused: no parity of v7@1.2 for member 0 here"):
        group.newcomer(1).rebuild()


def test_rebuild_clears_an_old_header(coded):
    group = coded(1, 1)
    newcomer = group.newcomer(1)
    write_seal(newcomer.segment.slot(0), newcomer.lost.seal)
    with pytest.raises(TransferError):
        newcomer.rebuild()
    assert read_seal(newcomer.segment.slot(0)) is None


def test_fence_ends_a_rebuild_and_nothing_is_written_afterwards(coded):
    group = coded(4, 2)
    group.protect()
    reached, release, asked = threading.Event(), threading.Event(), []
    real = group.nodes[2].parities

    def find(name):
        asked.append(name)
        if len(asked) == 3:
            reached.set()
            assert release.wait(WAIT_S)
        return real.find(name)

    group.nodes[2].parities = changed(real, find=find)
    newcomer, errors = group.newcomer(1), []

    def run() -> None:
        try:
            newcomer.rebuild()
        except TransferError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    assert reached.wait(WAIT_S)
    newcomer.client.fence(GENERATION.next(GENERATION.term))
    after = bytes(newcomer.segment.slot(0))
    release.set()
    thread.join(WAIT_S)
    assert bytes(newcomer.segment.slot(0)) == after
    assert "fenced by 1.4" in errors[0]
    with pytest.raises(TransferError, match=r"generation 1.3 is over"):
        newcomer.rebuild()
