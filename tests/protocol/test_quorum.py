"""Which nodes have to be a majority, as nodes report it. Most cases were found by the simulator: jobs that stopped or
split."""

from __future__ import annotations

from deadpool.protocol.identity import Generation
from deadpool.protocol.quorum import Changes, Electorate, Footing, Promise, Quorum, Seated, Voter, electorates

FOUNDING, RAN, NEW, NEWER = Generation(1, 1), Generation(1, 3), Generation(1, 4), Generation(2, 5)


def plan(generation: Generation, position: int, *moved: int) -> Seated:
    """That gave these positions to other nodes than had them in RAN."""
    return Seated(generation=generation, position=position, changes=Changes(since=RAN, positions=moved))


def sat(position: int | None, *heard: Seated, gone: Generation = RAN) -> Footing:
    """In `gone`, and has heard these plans since."""
    planned = max((gone, *(each.generation for each in heard)))
    return Footing(generation=planned, planned=planned, position=position, electorate=gone, vote=position, newer=heard)


def newcomer(heard: Seated) -> Footing:
    return Footing(generation=heard.generation, planned=heard.generation, position=heard.position, newer=(heard,))


def voter(node: str) -> Voter:
    return (node, "1")


def voting(positions: int, **footings: Footing) -> list[tuple[Generation, str]]:
    """Which generations' seats have to be won, and which nodes of each are here."""
    found = electorates(positions, {voter(node): footing for node, footing in footings.items()})
    return [(each.generation, " ".join(seat[0] if seat else "-" for seat in each.seats)) for each in found]


def test_those_who_ran_last() -> None:
    assert voting(2, n0=sat(0), n1=sat(1), s0=sat(None)) == [(RAN, "n0 n1")]


def test_founding_plan_stands_for_one_that_went() -> None:
    """Else a coordinator that lost all its nodes before the first Go would begin the job again with spares."""
    assert voting(2, n0=sat(0, gone=FOUNDING), s0=Footing()) == [(FOUNDING, "n0 -")]


def test_newer_plan_may_have_gone_unheard() -> None:
    heard = {"n0": sat(0, plan(NEW, 0, 2)), "n1": sat(1, plan(NEW, 1, 2)), "s2": newcomer(plan(NEW, 2, 2))}
    assert voting(3, **heard) == [(RAN, "n0 n1 -"), (NEW, "n0 n1 s2")]


def test_newer_plan_that_a_seat_has_not_heard_cannot_have_gone() -> None:
    """n1 keeps its seat in it; and having promised another coordinator it will never hear of it."""
    assert voting(3, n0=sat(0, plan(NEW, 0, 2)), n1=sat(1), s2=newcomer(plan(NEW, 2, 2))) == [(RAN, "n0 n1 -")]


def test_newer_plan_that_has_no_seat_for_a_node_may_have_gone() -> None:
    """n2 lost its seat by it: that n2 has not heard of it says nothing."""
    assert voting(3, n0=sat(0, plan(NEW, 0, 2)), n1=sat(1, plan(NEW, 1, 2)), n2=sat(2)) == [
        (RAN, "n0 n1 n2"),
        (NEW, "n0 n1 -"),
    ]


def test_plan_before_the_newest_may_have_gone() -> None:
    """The newest one has not, as n1 shows; but no node here shows that of the one before."""
    assert voting(3, n0=sat(0, plan(NEW, 0, 2), plan(NEWER, 0, 2)), n1=sat(1, plan(NEW, 1, 2)), n2=sat(2)) == [
        (RAN, "n0 n1 n2"),
        (NEW, "n0 n1 -"),
    ]


def test_go_that_only_some_have_heard() -> None:
    heard = {"n0": sat(0, gone=NEW), "n1": sat(1, plan(NEW, 1, 2)), "s2": newcomer(plan(NEW, 2, 2))}
    assert voting(3, **heard) == [(NEW, "n0 n1 s2")]


def test_majority_is_more_than_half() -> None:
    electorate = Electorate(generation=RAN, seats=tuple(voter(f"n{index}") for index in range(4)))
    assert not Quorum(alone=False, electorates=(electorate,)).has([voter("n0"), voter("n1")])
    assert Quorum(alone=False, electorates=(electorate,)).has([voter("n0"), voter("n1"), voter("n3")])
    assert Quorum(alone=True, electorates=(electorate,)).has([voter("n0")])


def test_node_that_was_started_again_has_no_vote() -> None:
    """It does not remember what it has promised."""
    electorate = Electorate(generation=RAN, seats=(voter("n0"), voter("n1"), voter("n2")))
    assert not Quorum(alone=False, electorates=(electorate,)).has([voter("n0"), ("n1", "2")])


def test_plan_tells_which_seats_it_changes() -> None:
    quorum = Quorum(alone=False)
    quorum.pass_to(RAN, [voter("n0"), voter("n1"), voter("n2")])
    assert quorum.changes([voter("n0"), ("n1", "2"), voter("s0")]) == Changes(since=RAN, positions=(1, 2))
    unknown = Electorate(generation=RAN, seats=(voter("n0"), None))
    assert unknown.changes([voter("n0"), voter("n1")]).positions == (1,)


def test_promise() -> None:
    promise = Promise(term=2, to="c1")
    assert promise.allows(3, "c0") and promise.allows(2, "c1")
    assert not promise.allows(2, "c0") and not promise.allows(1, "c1")
