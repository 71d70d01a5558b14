"""Of whom a majority is needed, as nodes report it. Most were found by the simulator: jobs that stopped or split."""

from __future__ import annotations

from deadpool.protocol.footing import Footing, Promise, Quorum, electorates
from deadpool.protocol.identity import Generation

FOUNDING, RAN, NEW, NEWER = Generation(1, 1), Generation(1, 3), Generation(1, 4), Generation(2, 5)


def ran(
    position: int,
    *,
    heard: tuple[Generation, ...] = (),
    unheard: tuple[Generation, ...] = (),
    gone: Generation = RAN,
) -> Footing:
    """Was seated when `gone` went. Has heard these plans since, and was fenced for those."""
    planned = max((gone, *heard))
    newest = max((planned, *unheard))
    named = {"generation": newest, "planned": planned, "electorate": gone, "seated": heard, "unheard": unheard}
    return Footing(position=position, votes=True, **named)  # type: ignore[arg-type]


def newcomer(position: int) -> Footing:
    """Seated by the new plan, and never before."""
    return Footing(generation=NEW, planned=NEW, position=position, seated=(NEW,))


def test_those_who_ran_last() -> None:
    spare = Footing(generation=RAN, planned=RAN)
    assert electorates({"n0": ran(0), "n1": ran(1), "s0": spare}) == ({"n0", "n1"},)


def test_founding_plan_stands_for_one_that_went() -> None:
    """Else a coordinator that lost all its nodes before the first Go would begin the job again with spares."""
    heard = Footing(generation=FOUNDING, planned=FOUNDING, position=0, electorate=FOUNDING, votes=True)
    assert electorates({"n0": heard, "s0": Footing()}) == ({"n0"},)


def test_newer_plan_may_have_gone_unheard() -> None:
    footings = {"n0": ran(0, heard=(NEW,)), "n1": ran(1, heard=(NEW,)), "s2": newcomer(2)}
    assert electorates(footings) == ({"n0", "n1"}, {"n0", "n1", "s2"})


def test_newer_plan_that_a_seat_has_not_heard_cannot_have_gone() -> None:
    """n1 was fenced for it, so it has a seat in it; and having promised somebody else it will never hear it."""
    footings = {"n0": ran(0, heard=(NEW,)), "n1": ran(1, unheard=(NEW,)), "s2": newcomer(2)}
    assert electorates(footings) == ({"n0", "n1"},)


def test_newer_plan_that_was_made_without_a_node_may_have_gone() -> None:
    """n3 was cut off when it was made, and was fenced later by somebody else: that says nothing about it."""
    footings = {"n1": ran(1, heard=(NEW,)), "n2": ran(2, heard=(NEW,)), "n3": ran(3, unheard=(NEWER,))}
    assert electorates(footings) == ({"n1", "n2", "n3"}, {"n1", "n2"})


def test_plan_before_the_newest_may_have_gone() -> None:
    """The newest one has not, as n2 shows; but nobody here shows that of the one before."""
    footings = {"n1": ran(1, heard=(NEW, NEWER)), "n2": ran(2, heard=(NEW,), unheard=(NEWER,)), "n3": ran(3)}
    assert electorates(footings) == ({"n1", "n2", "n3"}, {"n1", "n2"})


def test_go_that_only_some_have_heard() -> None:
    footings = {"n0": ran(0, gone=NEW), "n1": ran(1, heard=(NEW,)), "s2": newcomer(2)}
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
