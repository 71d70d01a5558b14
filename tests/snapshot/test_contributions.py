"""Contributions to a parity: cut anywhere and repeated, several at once, fenced, damaged, refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from coded_nodes import PIECE, CodedGroup, CodedNode, shard, smaller_pieces
from msgspec import structs
from snapshot_nodes import GENERATION, WAIT_S, greeted

from deadpool.errors import TransferError
from deadpool.protocol.identity import Generation
from deadpool.protocol.seal import Piece
from deadpool.snapshot.erasure.contribute import ContributeRequest, contribute
from deadpool.snapshot.erasure.galois import NumpyCoder
from deadpool.snapshot.erasure.parity_frames import pack_contribution
from deadpool.snapshot.transfer.frames import Chunk, Kind, pack_chunk, pack_frame

SHARDS = [
    shard(100, 20 * PIECE + 7, PIECE),
    shard(600, 31 * PIECE, 3),
    shard(0, 25 * PIECE, 0),
    shard(9, 40 * PIECE, 0),
]
TRANSFER = b"t" * 16


@pytest.fixture
def small_pieces(monkeypatch):
    with smaller_pieces(monkeypatch):
        yield


@pytest.fixture
def group(stack, small_pieces) -> CodedGroup:
    return stack.enter_context(closing(CodedGroup(1, SHARDS)))


def expected_rows(group: CodedGroup, target: CodedNode, contributors: list[CodedNode]) -> list[bytes]:
    """By the definition: the sum of all pieces of a row. With one parity every coefficient is 1."""
    rows = []
    for row in target.layout.rows:
        total = bytearray(row.size)
        for node in contributors:
            piece = node.contribution(target.member).piece_at(row.place)
            if piece is not None:
                data = node.bytes_of(piece.region)[piece.offset : piece.offset + piece.size]
                NumpyCoder().fold(memoryview(total), 1, data)
        rows.append(bytes(total))
    return rows


def rows_of(node: CodedNode) -> list[bytes]:
    return [bytes(row) for row in node.parity._rows.values()]


def test_parity_is_the_sum_of_what_was_contributed(group):
    target, *others = group.nodes
    for node in others:
        assert not target.parity.is_complete
        node.contribute(target)
        assert target.outcomes.get(timeout=WAIT_S) == ("contributed", node.member, "")
    assert target.parity.is_complete
    assert rows_of(target) == expected_rows(group, target, others)
    assert [each.member for each in target.parity.contributions] == [1, 2, 3]


def test_what_is_sent_is_one_kth_of_the_snapshot(group):
    """To all members together, every byte goes once per parity."""
    node = group.nodes[3]
    sent = sum(node.contribute(other) for other in group.nodes[:3])
    size = sum(len(node.bytes_of(name)) for name in ("record", "unique", "replica"))
    pieces = sum(len(node.contribution(other.member).pieces()) for other in group.nodes[:3])
    assert size < sent < size + 200 * pieces + 3 * 2048, "frames and digests"


def test_repeated_contribution_adds_nothing_and_sends_nothing(group):
    target, node = group.nodes[0], group.nodes[1]
    node.contribute(target)
    before = rows_of(target)
    assert node.contribute(target) < 2048, "only digests"
    assert rows_of(target) == before
    assert [target.outcomes.get(timeout=WAIT_S)[0] for _ in range(2)] == ["contributed"] * 2


class HalfSender:
    """Sends some pieces of a contribution and half of the next one, then goes away."""

    def __init__(self, request: ContributeRequest, node: CodedNode) -> None:
        self.stream = greeted(request.address)
        contribution = request.contribution
        packed = [TRANSFER, *pack_contribution(contribution)]
        self.stream.send_list(Kind.CONTRIBUTE, packed, contribution.digests.pack(contribution.seal))
        self.stream.expect(Kind.ACCEPT)
        self._pieces, self._node = [piece for _, piece in contribution.pieces()], node

    def send(self, count: int) -> None:
        for piece in self._pieces[:count]:
            self._send_piece(piece)
        head, data = self._frame(self._pieces[count])
        half = len(data) // 2
        self.stream._sock.sendall(head + data[:half])
        self._unsent, self._left = data[half:], self._pieces[count + 1 :]

    def send_rest(self) -> None:
        self.stream._sock.sendall(self._unsent)
        for piece in self._left:
            self._send_piece(piece)
        self.stream.expect(Kind.STORED)

    def _send_piece(self, piece: Piece) -> None:
        head, data = self._frame(piece)
        self.stream._sock.sendall(head + data)

    def _frame(self, piece: Piece) -> tuple[bytes, bytes]:
        data = self._node.bytes_of(piece.region)[piece.offset : piece.offset + piece.size]
        chunk = Chunk(region=piece.region, offset=piece.offset, size=piece.size)
        return pack_frame(Kind.DATA, GENERATION, [TRANSFER, *pack_chunk(chunk)], piece.size), bytes(data)


def test_contribution_cut_at_every_piece_and_repeated(group):
    node = group.nodes[3]
    whole = len(node.contribution(0).pieces())
    assert whole > 10
    for count in range(whole):
        with closing(CodedGroup(1, SHARDS)) as fresh:
            cut_and_repeat(fresh, count)


def cut_and_repeat(group: CodedGroup, count: int) -> None:
    target, node, other = group.nodes[0], group.nodes[3], group.nodes[1]
    other.contribute(target)
    assert target.outcomes.get(timeout=WAIT_S)[0] == "contributed"
    sender = HalfSender(node.contribute_request(target), node)
    sender.send(count)
    sender.stream.close()
    word, member, _ = target.outcomes.get(timeout=WAIT_S)
    assert (word, member) == ("dropped", 3)
    assert sum(target.parity.folded(3)) == count
    node.contribute(target)
    assert target.outcomes.get(timeout=WAIT_S)[:2] == ("contributed", 3)
    assert rows_of(target) == expected_rows(group, target, [other, node])[: len(rows_of(target))]


def test_contribution_of_more_pieces_than_a_frame_has_bytes_is_continued(small_pieces, monkeypatch):
    monkeypatch.setattr("deadpool.snapshot.transfer.frames.BODY_LIMIT_BYTES", 1000)
    with closing(CodedGroup(1, [shard(1, PIECE, 0), shard(0, 1001 * PIECE, 0)])) as group:
        target, node = group.nodes
        sender = HalfSender(node.contribute_request(target), node)
        sender.send(2)
        sender.stream.close()
        assert target.outcomes.get(timeout=WAIT_S)[0] == "dropped"
        node.contribute(target)
        assert target.outcomes.get(timeout=WAIT_S)[0] == "contributed"


def test_contributors_at_the_same_time(group):
    """All to all at once: every parity is added to by three threads or more."""
    pairs = [(node, other) for node in group.nodes for other in group.nodes if node is not other]
    with ThreadPoolExecutor(len(pairs)) as pool:
        list(pool.map(lambda pair: pair[0].contribute(pair[1]), pairs))
    for target in group.nodes:
        assert rows_of(target) == expected_rows(group, target, [node for node in group.nodes if node is not target])


def test_same_contribution_twice_at_the_same_time_is_added_once(group):
    """As after a connection that the sender gave up and the receiver has not missed yet."""
    target, node = group.nodes[0], group.nodes[3]
    sender = HalfSender(node.contribute_request(target), node)
    sender.send(2)
    node.contribute(target)
    sender.send_rest()  # what this stream still sends is in meanwhile
    sender.stream.close()
    assert rows_of(target) == expected_rows(group, target, [node])[: len(rows_of(target))]


def test_damaged_piece_is_not_added_and_the_sender_is_told(group):
    target, node = group.nodes[0], group.nodes[3]
    _, piece = node.contribution(0).pieces()[2]
    at = node.geometry.offset(piece.region) + piece.offset
    node.segment.slot(0)[at] ^= 1
    with pytest.raises(TransferError, match=f"refused: damaged: piece {piece.number} of region 'unique'"):
        node.contribute(target)
    assert target.outcomes.get(timeout=WAIT_S)[:2] == ("dropped", 3)
    assert target.parity.folded(3).count(0) == 1
    node.segment.slot(0)[at] ^= 1
    node.contribute(target)
    assert rows_of(target) == expected_rows(group, target, [node])[: len(rows_of(target))]


def test_fence_cuts_a_contribution_and_returns_after_its_writer(group):
    target, node = group.nodes[0], group.nodes[3]
    sender = HalfSender(node.contribute_request(target), node)
    sender.send(3)
    writers = list(target.server._threads.values())
    target.server.fence(GENERATION.next(GENERATION.term))
    assert not any(thread.is_alive() for thread in writers)
    word, _, reason = target.outcomes.get_nowait()
    assert word == "dropped" and "fenced by 1.4" in reason
    before, folded = rows_of(target), target.parity.folded(3)
    with pytest.raises(TransferError, match=r"refused: generation 1.3 is over"):
        node.contribute(target)
    assert (rows_of(target), target.parity.folded(3)) == (before, folded)
    node.contribute(target, Generation(1, 4))
    assert rows_of(target) == expected_rows(group, target, [node])[: len(rows_of(target))]
    sender.stream.close()


def test_fence_of_the_sender_ends_its_contribution(group):
    target, node = group.nodes[0], group.nodes[3]
    inside, release = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert release.wait(WAIT_S)

    target.before_open = hold
    errors: list[str] = []

    def run() -> None:
        try:
            node.contribute(target)
        except TransferError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(WAIT_S)
    node.client.fence(GENERATION.next(GENERATION.term))
    thread.join(WAIT_S)
    release.set()
    assert "fenced by 1.4" in errors[0]


# --- what is refused


def test_refusal_says_why_and_leaves_the_stream_usable(group):
    target, node = group.nodes[0], group.nodes[1]
    target.refuses = "no slot is free"
    for _ in range(2):
        with pytest.raises(TransferError, match="refused: no slot is free"):
            node.contribute(target)
    target.refuses = None
    node.contribute(target)


def contribute_changed(node: CodedNode, to: CodedNode, **changes) -> None:
    request = node.contribute_request(to)
    contribute(node.client, replace(request, contribution=replace(request.contribution, **changes)))


def test_another_snapshot_of_the_same_rank_is_refused(group):
    target, node = group.nodes[0], group.nodes[1]
    node.contribute(target)
    before = rows_of(target)
    node.segment.slot(0)[node.geometry.offset("unique")] ^= 1
    again = CodedNode(group.group, 2, SHARDS, True, None)
    with closing(again), pytest.raises(TransferError, match="another snapshot of rank 11 was added already"):
        seal = structs.replace(again.seal, rank=11)
        node_digests = again.digests
        contribute_changed(node, target, seal=seal, digests=node_digests, geometry=again.geometry)
    assert rows_of(target) == before


def test_digests_that_are_not_of_the_seal_are_not_believed(group):
    target, node = group.nodes[0], group.nodes[1]
    with pytest.raises(TransferError, match=r"closed the connection|reset"):
        contribute_changed(node, target, digests=replace(node.digests, unique=node.digests.unique[::-1]))
    assert target.outcomes.empty() and target.parity.contributions == ()


@pytest.mark.parametrize("changes", [{"member": 0}, {"member": 2}, {"target": 1}, {"target": 9}])
def test_contribution_of_a_wrong_member_is_refused(group, changes):
    target, node = group.nodes[0], group.nodes[1]
    with pytest.raises(TransferError, match=r"closed the connection|reset|refused: the parity is of another"):
        contribute_changed(node, target, **changes)
    assert target.parity.contributions == ()


def test_geometry_that_the_parity_was_not_laid_out_for_is_refused(group):
    target, node = group.nodes[0], group.nodes[2]
    larger = CodedNode(group.group, 2, [*SHARDS[:2], shard(0, 300 * PIECE, 0), SHARDS[3]], True, None)
    with closing(larger), pytest.raises(TransferError, match="the parity has no room for piece"):
        larger.contribute(target)
    assert target.outcomes.get(timeout=WAIT_S)[0] == "dropped"
    node.contribute(target)


def test_nothing_is_added_to_a_sealed_parity(group):
    target, *others = group.nodes
    with pytest.raises(AssertionError, match="has not contributed everything"):
        target.parity.seal()
    for node in others:
        node.contribute(target)
    digests = target.parity.seal()
    assert others[0].contribute(target) < 2048, "it is told that everything is in"
    assert target.parity.digests == digests and len(digests) == len(target.layout.rows)
