"""In which order nodes turn to coordinators."""

from __future__ import annotations

import pytest

from deadpool.protocol.agent.leadership.coordinator_session import ROUNDS, CoordinatorSearch


def test_all_are_tried_in_order_and_then_again() -> None:
    search = CoordinatorSearch()
    assert [search.choose(3) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_whoever_had_a_coordinator_begins_with_the_first() -> None:
    search = CoordinatorSearch()
    search.choose(3)
    search.choose(3)
    search.start_over()
    assert search.choose(3) == 0


def test_the_only_one_is_waited_for() -> None:
    search = CoordinatorSearch()
    search.choose(1)
    assert search.accepted(1) == search.accepted(1) > 1


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("nodes", [3, 4, 7])
def test_nodes_out_of_step_meet_in_the_end(count: int, nodes: int) -> None:
    """No coordinator leads, all accept. Some time in the last kind of round most are at the first place at once."""
    first, other = ROUNDS[-1]
    period = first + (count - 1) * other
    starts = [period * node / nodes for node in range(nodes)]  # the worst: evenly spread
    assert most_at_once(starts, first, period) > nodes / 2


def most_at_once(starts: list[float], stay: float, period: float) -> int:
    return max(sum((at - start) % period < stay for start in starts) for at in starts)


def test_rounds_in_which_nobody_was_there_do_not_count() -> None:
    """All coordinators were down for a minute, and the second is back a moment before the first: nobody may wait for it
    as long as for one whom everybody has tried."""
    search = CoordinatorSearch()
    for _ in range(2 * 60 + 1):
        search.choose(2)
    assert search.choose(2) == 1
    assert search.accepted(2) == ROUNDS[0][0]
