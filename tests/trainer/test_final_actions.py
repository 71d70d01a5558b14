"""What waits in job.on_final: once per step, never for nothing, and never lost in silence."""

from __future__ import annotations

import pytest

from deadpool.trainer.job_journal import FinalActions


def make() -> tuple[FinalActions, list[int]]:
    return FinalActions(), []


def register(actions: FinalActions, ran: list[int], *steps: int) -> None:
    for step in steps:
        actions.add(step, lambda step=step: ran.append(step))


def test_runs_in_order_once_its_step_is_final():
    actions, ran = make()
    register(actions, ran, 0, 1, 1, 2)
    actions.settle(2)
    actions.settle(2)
    assert ran == [0, 1, 1] and actions.counts() == {2: 1}


def test_step_that_is_done_again_registers_anew():
    actions, ran = make()
    register(actions, ran, 3, 4, 5)
    assert actions.resume(4) == []
    register(actions, ran, 4, 5)
    actions.settle(6)
    assert ran == [3, 4, 5]


def test_step_that_was_final_and_is_done_again_runs_once():
    actions, ran = make()
    register(actions, ran, 3, 4)
    actions.settle(5)
    actions.resume(3)
    register(actions, ran, 3, 4, 5)
    actions.settle(6)
    assert ran == [3, 4, 5]


def test_newcomer_names_what_is_gone():
    actions, _ = make()
    actions.restore({2: 1, 3: 2, 7: 1})
    assert actions.resume(5) == [2, 3], "step 7 is done again"
    assert actions.resume(5) == [], "told once"


def test_survivor_lost_nothing():
    actions, ran = make()
    register(actions, ran, 1, 2, 3)
    record = actions.counts()
    actions.settle(2)
    actions.restore(record)
    assert actions.resume(4) == []
    actions.settle(4)
    assert ran == [1, 2, 3]


def test_an_action_that_raises_takes_none_of_the_others_with_it():
    actions, ran = make()
    register(actions, ran, 0)
    actions.add(0, lambda: ran.append(1 // 0))
    register(actions, ran, 1, 2)
    with pytest.raises(ZeroDivisionError):
        actions.settle(2)
    assert ran == [0] and actions.counts() == {1: 1, 2: 1}
    actions.settle(2)
    assert ran == [0, 1]
