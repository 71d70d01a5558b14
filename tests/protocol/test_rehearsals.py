"""Which ranks spares rehearse: different ones, and of as many kinds as there are spares."""

from __future__ import annotations

import itertools

import pytest
from notation import address

from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.recovery.rehearsals import assignments, far_apart
from deadpool.protocol.identity import Layout
from deadpool.protocol.messages import TrainerInfo

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies


def spare(name: str, trainers: int) -> Member:
    idle = tuple(TrainerInfo(trainer=f"{name}.{i}", state="idle", rank=None) for i in range(trainers))
    return Member(name, "1", address(name), spare=True, heard=0.0, trainers=idle)


def rehearsed(layout: Layout, spares: list[Member]) -> list[list[int]]:
    return [[rank for _, rank in assignment] for _, assignment in assignments(spares, layout)]


@pytest.mark.parametrize(
    ("count", "order"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 2, 1, 3]), (6, [0, 3, 1, 4, 2, 5]), (8, [0, 4, 2, 6, 1, 5, 3, 7])],
)
def test_order(count: int, order: list[int]) -> None:
    assert list(far_apart(count)) == order


@given(count=st.integers(1, 200), taken=st.integers(1, 200))
def test_each_position_once_and_the_first_ones_far_apart(count: int, taken: int) -> None:
    order = far_apart(count)
    assert sorted(order) == list(range(count))
    taken = min(taken, count)
    first = sorted(order[:taken])
    closest = min((later - earlier for earlier, later in itertools.pairwise(first)), default=count)
    assert closest >= count // (1 << (taken - 1).bit_length())


def test_spares_of_a_pipeline_rehearse_different_stages() -> None:
    """Two stages of four nodes each, two ranks per node: rank 0 is of the first stage, rank 8 of the second."""
    layout = Layout(positions=8, per_node=2, holders=1)
    assert rehearsed(layout, [spare("s0", 2), spare("s1", 2)]) == [[0, 1], [8, 9]]


def test_rehearsals_of_one_spare_are_of_different_stages() -> None:
    layout = Layout(positions=8, per_node=1, holders=1)
    assert rehearsed(layout, [spare("s0", 2), spare("s1", 2)]) == [[0, 4], [2, 6]]


def test_more_spares_than_positions_begin_again() -> None:
    layout = Layout(positions=2, per_node=1, holders=1)
    assert rehearsed(layout, [spare(f"s{i}", 1) for i in range(3)]) == [[0], [1], [0]]


def rehearsing(name: str, *ranks: int, reserved: int | None = None) -> Member:
    parked = tuple(TrainerInfo(trainer=f"{name}.{rank}", state="parked", rank=rank) for rank in ranks)
    member = Member(name, "1", address(name), spare=True, heard=0.0, trainers=parked)
    member.reserved_position = reserved
    return member


def moved(spares: list[Member], urgent: tuple[int, ...] = ()) -> dict[str, int]:
    """Which trainers get another rank than they rehearse."""
    layout = Layout(positions=8, per_node=1, holders=1)
    return {trainer: rank for _, assignment in assignments(spares, layout, urgent) for trainer, rank in assignment}


def test_spares_go_on_with_what_they_rehearse() -> None:
    """The spare before them is gone, or has rehearsed what was about to be lost: nothing begins anew for that."""
    assert moved([rehearsing("s1", 4)]) == {}
    assert moved([rehearsing("s0", 6), rehearsing("s1", 4)]) == {}


def test_of_two_spares_that_rehearse_the_same_one_begins_anew() -> None:
    assert moved([rehearsing("s0", 4), rehearsing("s1", 4)]) == {"s1.4": 0}


def test_further_trainers_rehearse_what_none_does() -> None:
    grown = rehearsing("s0", 0)
    grown.note_trainers((*grown.trainers, TrainerInfo(trainer="s0.9", state="idle", rank=None)))
    assert moved([grown, rehearsing("s1", 4)]) == {"s0.9": 2}


def test_a_position_that_is_likely_to_be_lost_is_rehearsed_once() -> None:
    assert moved([rehearsing("s0", 0), rehearsing("s1", 4)], (3,)) == {"s0.0": 3}
    assert moved([rehearsing("s0", 3), rehearsing("s1", 4)], (3,)) == {}
    assert moved([rehearsing("s0", 0), rehearsing("s1", 3)], (3, 5)) == {"s0.0": 5}


def test_a_node_that_leaves_comes_first() -> None:
    assert 7 in moved([rehearsing("s0", 0, 4, reserved=7)]).values()
