"""Where copies go: never where they may be lost with their rank, and evenly to all nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from deadpool.protocol.coordinator.recovery.placement import LOAD_LIMIT, NO_PLACEMENT, Placement, Rack
from deadpool.protocol.coordinator.recovery.placement import place as place_by_scheme
from deadpool.protocol.features.coding.coordinator.placement import CodedRedundancy
from deadpool.protocol.schemes import Scheme

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies

RACKS = st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=2, max_size=12)


def place(racks: Sequence[Rack], count: int, before: Placement = NO_PLACEMENT) -> Placement:
    return place_by_scheme(racks, Scheme(copies=count), before)


def ring(positions: int, count: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple((p + i) % positions for i in range(1, count + 1)) for p in range(positions))


def load(placement: Placement) -> list[int]:
    held = Counter(holder for holders in placement.holders for holder in holders)
    return [held[p] for p in range(len(placement.racks))]


def alike(racks: tuple[Rack, ...], one: int, other: int) -> bool:
    return racks[one] is not None and racks[one] == racks[other]


def assert_sound(placement: Placement, count: int) -> None:
    """Whole, never at home, and in the own rack only where every node of another rack is taken or full."""
    racks, loads = placement.racks, load(placement)
    for position, holders in enumerate(placement.holders):
        assert len(set(holders)) == count and position not in holders
        outside = [p for p in range(len(racks)) if p != position and not alike(racks, position, p)]
        if any(alike(racks, position, holder) for holder in holders):
            assert position in placement.same_rack
            assert all(p in holders or loads[p] >= LOAD_LIMIT * count for p in outside)
        else:
            assert position not in placement.same_rack


@given(positions=st.integers(1, 12), count=st.integers(0, 4), rack=st.sampled_from([None, "a"]))
def test_without_racks_or_with_one_it_is_a_ring(positions: int, count: int, rack: Rack) -> None:
    count = min(count, positions - 1)
    assert place([rack] * positions, count).holders == ring(positions, count)


@given(racks=RACKS, count=st.integers(1, 3))
def test_never_the_own_node_nor_the_own_rack_where_another_has_room(racks: list[Rack], count: int) -> None:
    count = min(count, len(racks) - 1)
    assert_sound(place(racks, count), count)


@given(racks=RACKS)
def test_where_no_rack_is_wider_than_half_one_holder_each_is_even_and_outside(racks: list[Rack]) -> None:
    sizes = Counter(rack for rack in racks if rack is not None)
    if max(sizes.values(), default=1) * 2 <= len(racks):
        placement = place(racks, 1)
        assert placement.same_rack == () and set(load(placement)) == {1}


@given(data=st.data(), rack_count=st.integers(2, 5), size=st.integers(1, 5), count=st.integers(1, 4))
def test_racks_of_equal_size_hold_evenly(data: st.DataObject, rack_count: int, size: int, count: int) -> None:
    racks = data.draw(st.permutations([f"r{i}" for i in range(rack_count) for _ in range(size)]))
    count = min(count, len(racks) - size)
    placement = place(racks, count)
    assert placement.same_rack == ()
    assert max(load(placement)) - min(load(placement)) <= 1
    if count < rack_count:
        assert all(len({racks[h] for h in holders}) == count for holders in placement.holders)


@given(racks=RACKS, count=st.integers(1, 3))
def test_a_spare_of_the_same_rack_changes_no_holder(racks: list[Rack], count: int) -> None:
    before = place(racks, min(count, len(racks) - 1))
    assert place(list(racks), min(count, len(racks) - 1), before) == before


@given(racks=RACKS, count=st.integers(1, 3), data=st.data())
def test_spares_of_other_racks_move_only_what_they_have_to(racks: list[Rack], count: int, data: st.DataObject) -> None:
    """Again and again: what is well placed stays, and what had to move is well placed."""
    count = min(count, len(racks) - 1)
    placement = place(racks, count)
    for _ in range(4):
        before, racks = placement, list(racks)
        racks[data.draw(st.integers(0, len(racks) - 1))] = data.draw(st.sampled_from([None, "a", "b", "e"]))
        placement = place(racks, count, before)
        assert_sound(placement, count) if len(set(racks)) > 1 else None
        for position, holders in enumerate(before.holders):
            well_placed = {h for h in holders if not alike(placement.racks, position, h)}
            assert well_placed <= set(placement.of(position))


@pytest.mark.parametrize(
    ("racks", "count", "holders", "same_rack"),
    [
        (["a", "a", "b", "b"], 1, ((2,), (3,), (0,), (1,)), ()),
        (["a", "b", "a", "b"], 1, ((1,), (0,), (3,), (2,)), ()),
        (["a", "a", "b", "b"], 2, ((2, 3), (3, 2), (0, 1), (1, 0)), ()),
        (["a", "a", None, None], 1, ((2,), (3,), (0,), (1,)), ()),
        (["a", "a", "a", "b"], 1, ((3,), (3,), (1,), (2,)), (2,)),  # the one of b would have to hold everything
        (["a", "a", "a"], 1, ((1,), (2,), (0,)), (0, 1, 2)),
    ],
)
def test_known_placements(
    racks: list[Rack], count: int, holders: tuple[tuple[int, ...], ...], same_rack: tuple[int, ...]
) -> None:
    placement = place(racks, count)
    assert (placement.holders, placement.same_rack) == (holders, same_rack)


def test_thousands_of_nodes_are_placed_in_no_time() -> None:
    """Greedy search for every position would take minutes here; it is needed for none."""
    racks = [f"r{i // 16}" for i in range(4096)]
    placement = place(racks, 2)
    assert placement.same_rack == () and set(load(placement)) == {2}


@pytest.mark.parametrize(
    "scheme, losses", [("copies=1", 1), ("copies=2", 2), ("copies=9", 3), ("rs(2,2)", 2), ("rs(3,1)", 1)]
)
def test_as_many_nodes_may_be_lost_as_a_version_has_other_places(scheme: str, losses: int) -> None:
    asked = Scheme.parse(scheme)
    place = CodedRedundancy().place if asked.in_groups else place_by_scheme
    assert place([None] * 4, asked, NO_PLACEMENT, frozenset()).losses == losses
