"""Groups of erasure coding: every piece of every member is in exactly one stripe, and any m members may be lost."""

from __future__ import annotations

import itertools

import pytest

from deadpool.protocol.features.coding.stripes import Stripes, parity_layout
from deadpool.protocol.schemes import RankGroup, Scheme
from deadpool.protocol.seal import PIECE_BYTES, Extent, Geometry, capacity_extent, pieces_of

SHAPES = [(2, 1), (3, 1), (4, 1), (5, 1), (3, 2), (4, 2), (6, 2), (10, 2), (7, 3)]


def _group(size: int, parities: int) -> RankGroup:
    return RankGroup(ranks=tuple(range(100, 100 + size)), parities=parities)


def _geometry(pieces: int, record_bytes: int = 5000) -> Geometry:
    return Geometry(record_capacity=record_bytes, unique_bytes=pieces * PIECE_BYTES - 17, replica_bytes=0)


@pytest.mark.parametrize(("size", "parities"), SHAPES)
def test_every_member_has_as_many_data_and_parity_blocks_as_the_others(size: int, parities: int) -> None:
    group = Stripes(_group(size, parities))
    for member in range(size):
        assert len(group.data_stripes(member)) == size - parities
        assert len(group.parity_stripes(member)) == parities
        assert all(member in group.data_members(stripe) for stripe in group.data_stripes(member))
        assert all(member in group.parity_members(stripe) for stripe in group.parity_stripes(member))


@pytest.mark.parametrize(("size", "parities"), SHAPES)
def test_any_losses_up_to_the_parities_can_be_rebuilt_and_no_more(size: int, parities: int) -> None:
    group = Stripes(_group(size, parities))
    for count in range(1, min(size, parities + 2)):
        for lost in itertools.combinations(range(size), count):
            left = [member for member in range(size) if member not in lost]
            rebuilt = all(group.can_rebuild(member, left, left) for member in lost)
            assert rebuilt == (count <= parities)


@pytest.mark.parametrize(("size", "parities"), SHAPES)
def test_each_piece_goes_to_all_parities_of_its_stripe(size: int, parities: int) -> None:
    group, geometry = _group(size, parities), _geometry(7)
    stripes = Stripes(group)
    pieces = pieces_of(geometry, capacity_extent(geometry))
    for member in range(size):
        sent = [
            (piece.number, target)
            for target in group.others(member)
            for _, piece in stripes.pieces_for(member, target, geometry, capacity_extent(geometry))
        ]
        wanted = [
            (p.number, t) for p in pieces for t in stripes.parity_members(stripes.place_of(member, p.number).stripe)
        ]
        assert sorted(sent) == sorted(wanted)


def test_parity_of_equal_snapshots_takes_its_share_of_the_memory() -> None:
    group, geometry = _group(5, 1), _geometry(40)
    layout = parity_layout(group, 2, (geometry,) * 4)
    assert layout.size_bytes <= (40 * PIECE_BYTES) / 4 + 2 * PIECE_BYTES
    double = _group(10, 2)
    assert parity_layout(double, 0, (geometry,) * 9).size_bytes <= 40 * PIECE_BYTES / 4 + 4 * PIECE_BYTES


def test_rows_hold_the_longest_piece_and_do_not_overlap() -> None:
    group = _group(4, 2)
    geometries = (
        _geometry(3),
        _geometry(9),
        Geometry(record_capacity=PIECE_BYTES + 1, unique_bytes=0, replica_bytes=8),
    )
    layout = parity_layout(group, 1, geometries)
    ends = [row.offset + row.size for row in layout.rows]
    assert all(row.offset >= end for row, end in zip(layout.rows[1:], ends, strict=False))
    for other, geometry in zip(group.others(1), geometries, strict=True):
        for place, piece in Stripes(group).pieces_for(other, 1, geometry, capacity_extent(geometry)):
            assert piece.size <= layout.at[place].size


def test_shorter_record_keeps_the_numbers_of_all_pieces() -> None:
    geometry = Geometry(record_capacity=2 * PIECE_BYTES, unique_bytes=PIECE_BYTES, replica_bytes=0)
    short = pieces_of(geometry, Extent(record_bytes=10, unique_bytes=PIECE_BYTES, replica_bytes=0))
    assert [(piece.number, piece.region, piece.size) for piece in short] == [
        (0, "record", 10),
        (1, "record", 0),
        (2, "unique", PIECE_BYTES),
    ]


@pytest.mark.parametrize("text", ["copies=1", "copies=2", "rs(4,1)", "rs(8,2)"])
def test_scheme_reads_as_it_is_written(text: str) -> None:
    assert str(Scheme.parse(text)) == text


@pytest.mark.parametrize("text", ["", "rs(4)", "rs(0,0)", "rs(1,2)", "copies", "rs(250,10)", "copies=-1"])
def test_scheme_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="rs"):
        Scheme.parse(text)


@pytest.mark.parametrize("ranks", [(1,), (), (1, 1)])
def test_group_that_makes_no_sense_is_refused(ranks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no group"):
        RankGroup(ranks=ranks, parities=1)
