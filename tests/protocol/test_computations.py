"""Computations of one step, side by side: the earliest stage that differs is the cause, and names a node or nobody."""

from __future__ import annotations

import pytest

from deadpool.protocol.features.corruption.coordinator.computations import Difference, OddOne, Stage, difference
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import StepDigests

RANKS = 4


def computation(*, apart: bool = True, **changed: tuple[int, ...]) -> dict[int, StepDigests]:
    """`gradients=(1, 2)`: ranks 1 and 2 have others."""
    return {
        rank: StepDigests(
            generation=Generation(1, 1),
            rank=rank,
            number=6,
            apart=apart,
            **{stage.value: rank + (100 if rank in changed.get(stage.value, ()) else 0) for stage in Stage},
        )
        for rank in range(RANKS)
    }


def named(*, is_first: bool = False, apart: bool = True, per_node: int = 1, **changed: tuple[int, ...]) -> str | None:
    odd = OddOne(computation(apart=apart, **changed), computation(apart=apart), is_first)
    return odd.node(lambda rank: f"n{rank // per_node}")


def test_ranks_that_got_wrong_numbers_are_not_suspected():
    wrong = computation(gradients=(2,), reduced=(0, 1, 2, 3), after=(0, 1, 2, 3))
    assert difference(computation(), wrong) == Difference(Stage.GRADIENTS, (2,))
    assert named(gradients=(2,), reduced=(0, 1, 2, 3), after=(0, 1, 2, 3)) == "n2"


def test_computations_that_agree_have_no_difference():
    assert difference(computation(), computation()) is None


@pytest.mark.parametrize("stage", ["before", "gradients", "after"])
def test_rank_that_alone_differs_first_is_named(stage):
    assert named(**{stage: (3,)}) == "n3"


@pytest.mark.parametrize(
    ("why", "changed"),
    [
        ("a sum passes through other ranks", {"reduced": (1,), "after": (0, 1, 2, 3)}),
        ("two nodes", {"gradients": (1, 2)}),
        ("nobody has repeated itself", {"gradients": (0, 1, 2, 3), "per_node": 4}),
        ("ranks exchange activations", {"gradients": (1,), "apart": False}),
        ("the state was put back for the first time", {"before": (1,), "is_first": True}),
    ],
)
def test_nobody_is_named(why, changed):
    assert named(**changed) is None, why


def test_several_ranks_of_one_node():
    assert named(gradients=(2, 3), per_node=2) == "n1"


def test_evidence_has_what_differs():
    odd = OddOne(computation(gradients=(2,)), computation(), is_first=True)
    evidence = odd.evidence("n2", 6)
    assert (evidence.ranks, evidence.step, evidence.digests, evidence.others) == (
        (2,),
        6,
        (f"{102:016x}",),
        (f"{2:016x}",),
    )
