"""When a running job is taken for one that hangs, and when not. What follows is in the transcripts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from deadpool.protocol.coordinator.membership.hang import (
    HANG_AT_LEAST_S,
    IDLE_AGAIN,
    IDLE_AT_LEAST_S,
    LATE_AT_FIRST_S,
    LATE_S,
    HangDetector,
    Standstill,
)


class Watched:
    """A watch over two ranks that is told of their steps every second."""

    def __init__(self, hang_s: float = 0.0) -> None:
        self.watch = HangDetector(hang_s, world_size=2)
        self.now = 0.0
        self.watch.start(self.now)

    def stand(
        self, seconds: int, *steps: int, paused: bool = False, waiting: Collection[int] = (), idle: Collection[int] = ()
    ) -> Standstill | None:
        """Nothing new for so long; what was said of it, if anything, the first time."""
        found = None
        for _ in range(seconds):
            self.now += 1
            self.watch.on_steps(enumerate(steps), self.now)
            self.watch.on_idle((0, 1), waiting=waiting, idle=idle)
            said = self.watch.detect(self.now, paused=paused)
            assert not (found and said), "told once"
            found = found or said
        return found

    def steps(self, first: int, count: int, each_s: int) -> int:
        """As many steps, of so many seconds. The number of the last one."""
        for step in range(first, first + count):
            assert self.stand(each_s, step, step) is None
        return first + count - 1


def test_rank_that_is_behind_is_named() -> None:
    found = Watched(hang_s=30).stand(40, 5, 4)
    assert found is not None and found.is_hang
    assert found.reason == "no step for 30 s; behind: ranks 1"


def test_progress_of_any_rank_is_progress() -> None:
    job = Watched(hang_s=30)
    assert job.stand(29, 5, 4) is None
    assert job.stand(29, 5, 5) is None
    assert job.stand(32, 5, 5) is not None


def test_quick_job_hangs_after_a_minute() -> None:
    job = Watched()
    last = job.steps(1, count=20, each_s=1)
    assert job.stand(int(HANG_AT_LEAST_S) - 1, last, last) is None
    assert job.stand(2, last, last) is not None


def test_slow_job_hangs_after_ten_slow_steps() -> None:
    job = Watched()
    last = job.steps(1, count=5, each_s=20)
    assert job.stand(199, last + 1, last + 1) is None
    assert job.stand(3, last + 1, last + 1) is not None


def test_step_that_was_slow_long_ago_is_forgotten() -> None:
    job = Watched()
    last = job.steps(job.steps(1, count=2, each_s=20) + 1, count=200, each_s=1)
    assert job.stand(70, last, last) is not None


def test_first_step_may_take_long() -> None:
    found = Watched().stand(1000, 5, 0)
    assert found is not None and not found.is_hang, "people are told, nothing is done"
    assert found.behind == (1,)


def test_first_step_under_a_limit_set_on_purpose() -> None:
    found = Watched(hang_s=30).stand(40, 0, 0)
    assert found is not None and found.is_hang


def test_rank_that_is_not_in_its_loop_yet() -> None:
    job = Watched(hang_s=30)
    found = job.stand(40, 0)
    assert found is not None and not found.is_hang
    assert found.behind == (1,)


def test_pause_is_not_counted() -> None:
    job = Watched(hang_s=30)
    assert job.stand(20, 5, 5) is None
    assert job.stand(1000, 5, 5, paused=True) is None
    assert job.stand(29, 5, 5) is None
    assert job.stand(2, 5, 5) is not None


def test_pause_makes_no_slow_step() -> None:
    job = Watched()
    last = job.steps(1, count=5, each_s=1)
    job.stand(100, last, last, paused=True)
    job.steps(last + 1, count=1, each_s=1)
    assert job.watch.limit_s == HANG_AT_LEAST_S


def test_recovery_makes_no_slow_step() -> None:
    job = Watched()
    last = job.steps(1, count=5, each_s=1)
    job.now += 100
    job.watch.start(job.now)
    job.steps(last, count=5, each_s=1)
    assert job.watch.limit_s == HANG_AT_LEAST_S


def test_silence_of_the_coordinators_own_is_no_hang() -> None:
    job = Watched(hang_s=30)
    job.stand(20, 5, 5)
    job.now += 100
    job.watch.discount_stall(100)
    assert job.stand(9, 5, 5) is None
    assert job.stand(3, 5, 5) is not None


def recovered(job: Watched) -> None:
    """A newcomer sits as rank 1 now."""
    job.now += 5
    job.watch.start(job.now)


def test_first_step_of_a_newcomer_hangs() -> None:
    """In a job whose first steps were quick."""
    job = Watched()
    last = job.steps(0, count=5, each_s=1)
    recovered(job)
    assert job.stand(int(HANG_AT_LEAST_S) - 1, last, 0) is None
    found = job.stand(3, last, 0)
    assert found is not None and found.is_hang
    assert found.behind == (1,)


def test_newcomer_that_compiles_as_long_as_the_others_did_is_no_hang() -> None:
    job = Watched()
    assert job.stand(50, 0, 0) is None
    last = job.steps(1, count=5, each_s=1)
    assert job.watch.first_limit_s == 3 * 50
    recovered(job)
    assert job.stand(150, last, 0) is None
    found = job.stand(5, last, 0)
    assert found is not None and found.is_hang


def test_every_first_step_of_a_job_is_remembered() -> None:
    job = Watched()
    last = job.steps(0, count=5, each_s=1)
    recovered(job)
    assert job.stand(40, last, 0) is None
    last = job.steps(last + 1, count=200, each_s=1)
    recovered(job)
    assert job.stand(115, last, 0) is None, "3 times the 40 s that the newcomer before has taken"
    assert job.stand(10, last, 0) is not None


def test_building_before_the_loop_makes_no_slow_first_step() -> None:
    job = Watched()
    job.stand(200, 0)
    job.steps(0, count=5, each_s=1)
    assert job.watch.first_limit_s == HANG_AT_LEAST_S


def test_newcomer_that_is_not_in_its_loop_yet_does_not_hang() -> None:
    job = Watched()
    last = job.steps(0, count=5, each_s=1)
    recovered(job)
    found = job.stand(100, last)
    assert found is not None and not found.is_hang


def test_pause_in_a_first_step_is_not_counted() -> None:
    job = Watched()
    job.stand(100, 0, 0, paused=True)
    job.steps(1, count=3, each_s=1)
    assert job.watch.first_limit_s == HANG_AT_LEAST_S


def test_coordinator_that_took_over_knows_no_first_step() -> None:
    """As at a start: people are told, until it has seen one."""
    job = Watched()
    job.watch.start(job.now, from_go=False)
    last = job.steps(7, count=5, each_s=1)
    recovered(job)
    found = job.stand(200, last, 0)
    assert found is not None and not found.is_hang
    last = job.steps(last + 1, count=1, each_s=1)
    recovered(job)
    assert job.watch.first_limit_s == 3 * 200
    assert job.stand(500, last, 0) is None
    found = job.stand(110, last, 0)
    assert found is not None and found.is_hang


STANDS_STILL: dict[str, Any] = {"waiting": {0}, "idle": {1}}
SOON = int(IDLE_AT_LEAST_S)


def test_standstill_in_which_no_rank_works_is_a_hang_soon() -> None:
    job = Watched()
    last = job.steps(1, count=20, each_s=1)
    assert job.stand(SOON - 1, last, last, **STANDS_STILL) is None
    found = job.stand(2, last, last, **STANDS_STILL)
    assert found is not None and found.is_hang
    assert found.reason == "no step for 5 s, and no rank does anything; behind: ranks 1"


def test_rank_that_is_busy_is_waited_for() -> None:
    """It compiles, evaluates, or writes a checkpoint."""
    job = Watched()
    last = job.steps(1, count=20, each_s=1)
    assert job.stand(int(HANG_AT_LEAST_S) - 1, last, last, waiting={0}) is None


def test_collective_that_is_stuck_is_a_hang_soon() -> None:
    job = Watched()
    last = job.steps(1, count=20, each_s=1)
    assert job.stand(SOON + 1, last, last, waiting={0, 1}) is not None


def test_idle_ranks_that_nobody_waits_for_have_a_reason_of_their_own() -> None:
    """Storage that is slow for all of them, say: each rank that did not come to rest would be ended."""
    job = Watched()
    last = job.steps(1, count=20, each_s=1)
    assert job.stand(int(HANG_AT_LEAST_S) - 1, last, last, idle={0, 1}) is None


def test_idle_ranks_of_one_node_are_one_fault_and_those_of_two_are_not() -> None:
    for idle, is_hang in (({0, 1}, True), ({1, 2}, False)):
        watch = HangDetector(0.0, world_size=6, per_node=2)
        watch.start(0.0)
        for step in range(20):
            watch.on_steps([(rank, step) for rank in range(6)], float(step))
        watch.on_idle(range(6), waiting=set(range(6)) - idle, idle=idle)
        assert (watch.detect(30.0, paused=False) is not None) == is_hang


def test_step_that_takes_long_as_others_have_is_no_hang() -> None:
    """Two of the last hundred took 8 s: an evaluation, say."""
    job = Watched()
    last = job.steps(1, count=10, each_s=1)
    last = job.steps(last + 1, count=1, each_s=8)
    last = job.steps(last + 1, count=10, each_s=1)
    last = job.steps(last + 1, count=1, each_s=8)
    assert job.stand(5 * 8 - 8, last, last, **STANDS_STILL) is None, "the last step was told of 8 s ago"
    assert job.stand(2, last, last, **STANDS_STILL) is not None


def test_idle_ranks_are_not_judged_before_enough_steps_are_known() -> None:
    job = Watched()
    last = job.steps(1, count=5, each_s=1)
    assert job.stand(int(HANG_AT_LEAST_S) - 1, last, last, **STANDS_STILL) is None


def test_limit_that_the_user_gave_holds_for_idle_ranks_too() -> None:
    job = Watched(hang_s=30)
    last = job.steps(1, count=20, each_s=1)
    assert job.stand(29, last, last, **STANDS_STILL) is None
    assert job.stand(2, last, last, **STANDS_STILL) is not None


def test_pause_that_was_announced_is_no_hang_of_idle_ranks() -> None:
    job = Watched()
    last = job.steps(1, count=20, each_s=1)
    assert job.stand(100, last, last, paused=True, **STANDS_STILL) is None


def test_step_that_comes_to_a_standstill_again_has_more_time() -> None:
    """What it waits for may be outside the job and slow: redoing it every few seconds would never end."""
    job = Watched()
    last = job.steps(1, count=20, each_s=1)
    assert job.stand(SOON + 1, last, last, **STANDS_STILL) is not None
    job.watch.start(job.now)
    assert job.stand(1, last - 1, last - 1) is None and job.stand(1, last, last) is None
    assert job.stand(IDLE_AGAIN * SOON - 1, last, last, **STANDS_STILL) is None
    assert job.stand(2, last, last, **STANDS_STILL) is not None
    job.watch.start(job.now)
    last = job.steps(last, count=3, each_s=1)
    assert job.stand(SOON + 1, last, last, **STANDS_STILL) is not None, "further than ever: the first limit again"


def test_step_time_is_not_the_time_between_two_nodes_heartbeats() -> None:
    """Heartbeats of many nodes come one after the other. Steps take 10 s here, and news a tenth of a second."""
    watch, now = HangDetector(0.0, world_size=20), 0.0
    watch.start(now)
    for step in range(30):
        for rank in range(20):
            watch.on_steps([(rank, step)], now + 0.1 * rank)
        now += 10.0
    watch.on_idle(range(20), waiting=range(1, 20), idle=[0])
    assert watch.detect(now + 35.0, paused=False) is None
    assert watch.detect(now + 45.0, paused=False) is not None


def test_reports_that_were_away_for_a_while_make_no_slow_step() -> None:
    """The coordinator was cut off for 20 s, in which 20 steps were completed."""
    job = Watched()
    last = job.steps(1, count=20, each_s=1)
    job.now += 20
    assert job.stand(1, last + 21, last + 21) is None
    assert job.stand(int(IDLE_AT_LEAST_S), last + 21, last + 21, waiting=[0], idle=[1]) is not None


def test_step_is_late_soon_after_it_should_have_ended() -> None:
    job = Watched()
    assert not job.watch.is_late(job.now + LATE_AT_FIRST_S - 0.1) and job.watch.is_late(job.now + LATE_AT_FIRST_S)
    job.steps(1, count=20, each_s=6)
    began = job.watch._since
    assert not job.watch.is_late(began + 6 + LATE_S - 0.1) and job.watch.is_late(began + 6 + LATE_S)
