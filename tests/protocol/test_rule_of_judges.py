"""Which computation of a step is trusted where ranks move, what comes next, and who is named. Pure functions."""

from __future__ import annotations

import pytest

from deadpool.protocol.features.corruption.coordinator.computations import Stage
from deadpool.protocol.features.corruption.coordinator.findings import ByProcess, Case, Finding, Named, Unexplained
from deadpool.protocol.features.corruption.coordinator.judges import (
    Again,
    Computed,
    Settled,
    Turn,
    Undecided,
    Unrepeated,
    decide,
)
from deadpool.protocol.features.corruption.coordinator.votes import Found
from deadpool.protocol.identity import Generation, Layout
from deadpool.protocol.messages import StepDigests

LAYOUT = Layout(positions=2, per_node=1, holders=1)
TURN = Turn(0, "x")


def computed(*seats: str, errs: dict[str, int] | None = None, spread: bool = False) -> Computed:
    """`errs`: nodes whose gradients are wrong, and in which way. With `spread` all ranks differ in that stage."""
    wrong = [how for node, how in (errs or {}).items() if node in seats]
    told = {}
    for rank, node in enumerate(seats):
        own = (errs or {}).get(node, 0) if not spread else sum(wrong)
        stages = {Stage.BEFORE: rank, Stage.GRADIENTS: rank + 100 * own}
        stages |= {Stage.REDUCED: 7 + 1000 * sum(wrong), Stage.AFTER: rank + 1000 * sum(wrong)}
        digests = {stage.value: digest for stage, digest in stages.items()}
        told[rank] = StepDigests(generation=Generation(1, 1), rank=rank, number=6, **digests)
    return Computed(told, seats)


def findings(*computations: Computed) -> list[Finding]:
    decision = decide(computations, TURN, ())
    assert isinstance(decision, Settled), decision
    case = Case(step=6, layout=LAYOUT, computed=computations, turn=TURN, confirmed={"x": 3})
    return case.findings(decision)


def named(*computations: Computed) -> list[tuple[str, Found, int]]:
    found = [each for each in findings(*computations) if isinstance(each, Named)]
    return [(each.evidence.node, each.evidence.found, each.errors) for each in found]


X = {"x": 1}  # errs always
S = {"s": 2}


def test_no_value_is_trusted_that_only_one_node_has_computed() -> None:
    judged = computed("s", "y", errs=S)
    decision = decide([computed("x", "y"), computed("x", "y"), judged, judged], TURN, ("x", "t"))
    assert decision == Again({0: "x"}), "the judge has repeated itself, which proves nothing"


def test_two_nodes_that_agree_settle_it() -> None:
    assert isinstance(decide([computed("x", "y"), computed("x", "y"), computed("s", "y")], TURN, ("x",)), Settled)


def test_without_a_turn_two_computations_of_the_same_nodes_settle_it() -> None:
    assert isinstance(decide([computed("x", "y"), computed("x", "y")], None, ()), Settled)
    differing = [computed("x", "y", errs={"x": how}) for how in (1, 2, 3, 4)]
    assert decide(differing[:3], None, ()) == Again({})
    assert decide(differing, None, ()) == Unrepeated()


def test_what_agrees_with_nothing_is_repeated_as_it_is() -> None:
    plain = [computed("x", "y", errs=X)] * 2
    assert decide([*plain, computed("s", "y")], TURN, ("x", "t")) == Again({})


@pytest.mark.parametrize(
    ("spares", "errs", "expected"),
    [
        (("s", "t"), X, {0: "t"}),
        (("s",), X, {0: "y", 1: "s"}),
        (("s",), S, {0: "y", 1: "s"}),
    ],
)
def test_third_node(spares: tuple[str, ...], errs: dict[str, int], expected: dict[int, str]) -> None:
    """Another spare; or, where none is left, a node that has a seat."""
    seats = [("x", "y"), ("x", "y"), ("s", "y"), ("s", "y"), ("x", "y")]
    assert decide([computed(*each, errs=errs) for each in seats], TURN, spares) == Again(expected)


def test_after_that_the_other_one_of_the_two_takes_the_seat() -> None:
    seats = [("x", "y"), ("x", "y"), ("s", "y"), ("s", "y"), ("x", "y"), ("y", "s"), ("y", "s")]
    computations = [computed(*each, errs=S) for each in seats]
    assert decide(computations, TURN, ("x",)) == Again({0: "y", 1: "x"})
    assert named(*computations, computed("y", "x")) == [("s", Found.REPEATED, 2), ("s", Found.REPEATED, 2)]


def test_nobody_is_left_to_ask() -> None:
    seats = [("x",), ("x",), ("s",), ("s",), ("x",)]
    assert decide([computed(*each, errs=S) for each in seats], TURN, ("s",)) == Undecided()


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("third", [("t", "y"), ("y", "s")])
def test_node_that_errs_always_is_named_by_its_seat(third: tuple[str, ...], spread: bool) -> None:
    """Also where ranks exchange so much that its error shows in all of them at once."""
    seats = [("x", "y"), ("x", "y"), ("s", "y"), ("s", "y"), ("x", "y"), third]
    computations = [computed(*each, errs=X, spread=spread) for each in seats]
    assert named(*computations) == [("x", Found.REPEATED, 3)]
    (found,) = findings(*computations)
    assert isinstance(found, Named) and "since step 3" in found.evidence.reason


def test_judge_that_errs_always_is_named() -> None:
    seats = [("x", "y"), ("x", "y"), ("s", "y"), ("s", "y"), ("x", "y"), ("t", "y")]
    assert named(*(computed(*each, errs=S) for each in seats)) == [("s", Found.REPEATED, 2)]


def test_error_that_happens_once_beside_it_is_its_nodes_own() -> None:
    once = computed("s", "y", errs={"y": 5})
    assert named(computed("x", "y"), computed("x", "y"), once, computed("s", "y")) == [("y", Found.CHANGED, 1)]


def test_sum_that_was_wrong_once_names_nobody() -> None:
    wrong = computed("s", "y", errs={"y": 5}, spread=True)
    found = findings(computed("x", "y"), computed("x", "y"), wrong, computed("s", "y"))
    assert [type(each) for each in found] == [Unexplained]


def test_former_node_that_agrees_with_the_judge_in_a_new_process_shows_that_it_is_the_script() -> None:
    other = {"x": 4, "s": 4}
    seats = [("s", "y"), ("s", "y"), ("x", "y")]
    computations = [computed("x", "y"), computed("x", "y"), *(computed(*each, errs=other) for each in seats)]
    assert findings(*computations) == [ByProcess("x", (0,))]


def test_node_that_was_moved_counts_once() -> None:
    """Node y has computed both ranks in turn. Its own seat is agreed upon only once another node has computed it."""
    errs = {"x": 1, "s": 2}
    seats = [("x", "y"), ("x", "y"), ("s", "y"), ("s", "y"), ("x", "y"), ("y", "s"), ("y", "s"), ("y", "x"), ("t", "x")]
    decision = decide([computed(*each, errs=errs) for each in seats], TURN, ("s",))
    assert not isinstance(decision, Settled), "t and y agree, and rank 1 was computed by x both times"
