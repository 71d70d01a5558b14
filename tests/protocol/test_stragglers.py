"""Which nodes are slow all the time: compared by how long they work at a step, not by how long steps take."""

from __future__ import annotations

import pytest
from benches import job_state

from deadpool.protocol.agent.leadership.heartbeat import ENOUGH, SPAN_S, WorkTimes
from deadpool.protocol.coordinator.membership.stragglers import ROUNDS, StragglerWatch
from deadpool.protocol.identity import Generation, Layout
from deadpool.protocol.messages import Stepped, WorkTime

GENERATION = Generation(1, 1)
STEP_S = 0.5


def watch_rounds(own_s: list[float], rounds: int = ROUNDS, per_node: int = 1) -> StragglerWatch:
    nodes = len(own_s) // per_node
    layout = Layout(positions=nodes, per_node=per_node, holders=1)
    watch = StragglerWatch(layout, job_state(layout).out)
    for _ in range(rounds):
        watch.on_work_times(WorkTime(rank=rank, step_s=STEP_S, own_s=seconds) for rank, seconds in enumerate(own_s))
        watch.compare([f"n{position}" for position in range(nodes)])
    return watch


@pytest.mark.parametrize(
    ("own_s", "slow", "usual_s"),
    [
        ([0.1, 0.4, 0.1], "n1", 0.1),
        ([0.4, 0.1], "n0", 0.1),
        ([0.1, 0.2, 0.3, 0.48], "n3", 0.2),
        ([0.1, 0.2, 0.3, 0.48, 0.3], "n3", 0.25),
    ],
)
def test_one_works_longer_than_the_median_of_the_others(own_s, slow, usual_s):
    (straggler,) = watch_rounds(own_s).known.values()
    assert straggler.node == slow and straggler.usual_s == pytest.approx(usual_s)
    assert straggler.factor == pytest.approx(max(own_s) / usual_s)


def test_a_node_counts_by_its_busiest_rank():
    (straggler,) = watch_rounds([0.1, 0.1, 0.1, 0.4, 0.1, 0.1], per_node=2).known.values()
    assert (straggler.node, straggler.rank) == ("n1", 3)


@pytest.mark.parametrize("own_s", [[0.1, 0.14, 0.1], [0.001, 0.003, 0.001], [0.4, 0.4, 0.4, 0.1], [0.0, 0.0]], ids=str)
def test_no_node_is_slow(own_s):
    """Not by enough; not by anything that matters; as most are; nothing measured."""
    assert watch_rounds(own_s).known == {}


def test_not_for_long_enough():
    assert watch_rounds([0.1, 0.4, 0.1], rounds=ROUNDS - 1).known == {}


def test_several_are_slow_and_the_slowest_is_named_first():
    watch = watch_rounds([0.1, 0.4, 0.1, 0.1, 0.45])
    assert set(watch.known) == {"n1", "n4"}
    slowest = watch.slowest()
    assert slowest is not None and slowest.node == "n4"


# --- what an agent tells --------------------------------------------------------------------------------------------


def told(*steps: tuple[float, float | None]) -> tuple[WorkTime, ...]:
    times = WorkTimes()
    for number, (step_s, waited_s) in enumerate(steps):
        times.on_stepped(7, Stepped(generation=GENERATION, number=number, step_s=step_s, waited_s=waited_s))
    return times.of_ranks()


def test_the_rest_of_a_step_is_work():
    (work,) = told(*[(SPAN_S / 4, SPAN_S / 8)] * 4 * ENOUGH)
    assert (work.rank, work.step_s, work.own_s) == (7, SPAN_S / 4, SPAN_S / 8)


def test_rough_estimates_of_short_steps_even_out():
    (work,) = told(*[(SPAN_S / 4, 0.0), (SPAN_S / 4, SPAN_S / 4)] * 2 * ENOUGH)
    assert work.own_s == SPAN_S / 8


def test_one_long_step_does_not_count():
    (work,) = told(*[(SPAN_S, SPAN_S / 2)] * ENOUGH, (50 * SPAN_S, 0.0))
    assert work.own_s == SPAN_S / 2


def test_nothing_is_told_of_too_little_or_of_what_was_not_measured():
    assert told(*[(SPAN_S, 0.0)] * (ENOUGH - 1)) == ()
    assert told(*[(SPAN_S, None)] * ENOUGH) == ()
