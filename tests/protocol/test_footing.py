"""Of whom a majority is needed, as nodes report it. Most were found by the simulator: jobs that stopped or split."""

from __future__ import annotations

from deadpool.protocol.footing import Footing, Promise, Quorum, electorates
from deadpool.protocol.identity import Generation

FOUNDING, RAN, NEW = Generation(1, 1), Generation(1, 3), Generation(1, 4)


def ran(position: int, *, fenced: Generation = RAN, planned: Generation = RAN, gone: Generation = RAN) -> Footing:
    return Footing(generation=max(fenced, planned), planned=planned, position=position, electorate=gone, votes=True)


def newcomer(position: int) -> Footing:
    """Seated by the new plan, and never before."""
    return Footing(generation=NEW, planned=NEW, position=position)


def test_those_who_ran_last() -> None:
    spare = Footing(generation=RAN, planned=RAN)
    assert electorates({"n0": ran(0), "n1": ran(1), "s0": spare}) == ({"n0", "n1"},)


def test_founding_plan_stands_for_one_that_went() -> None:
    """Else a coordinator that lost all its nodes before the first Go would begin the job again with spares."""
    heard = Footing(generation=FOUNDING, planned=FOUNDING, position=0, electorate=FOUNDING, votes=True)
    assert electorates({"n0": heard, "s0": Footing()}) == ({"n0"},)


def test_newer_plan_may_have_gone_unheard() -> None:
    footings = {"n0": ran(0, planned=NEW), "n1": ran(1, planned=NEW), "s2": newcomer(2)}
    assert electorates(footings) == ({"n0", "n1"}, {"n0", "n1", "s2"})


def test_newer_plan_that_a_seat_has_not_heard_cannot_have_gone() -> None:
    """n1 was fenced for it, so it has a seat in it; and having promised somebody else it will never hear it."""
    footings = {"n0": ran(0, planned=NEW), "n1": ran(1, fenced=NEW), "s2": newcomer(2)}
    assert electorates(footings) == ({"n0", "n1"},)


def test_go_that_only_some_have_heard() -> None:
    footings = {"n0": ran(0, planned=NEW, gone=NEW), "n1": ran(1, planned=NEW), "s2": newcomer(2)}
    assert electorates(footings) == ({"n0", "n1", "s2"},)


def test_majority_is_more_than_half() -> None:
    voters = (frozenset({"n0", "n1", "n2", "n3"}),)
    assert not Quorum(4, alone=False, electorates=voters).has({"n0", "n1"})
    assert Quorum(4, alone=False, electorates=voters).has({"n0", "n1", "n3"})
    assert Quorum(4, alone=True, electorates=voters).has({"n0"})


def test_promise() -> None:
    promise = Promise(term=2, to="c1")
    assert promise.allows(3, "c0") and promise.allows(2, "c1")
    assert not promise.allows(2, "c0") and not promise.allows(1, "c1")
