"""How wide the interval is chosen, and what it takes to change it. How changes are ordered is in the transcripts."""

from __future__ import annotations

from benches import job_state

from deadpool.protocol.coordinator.commits.interval import IntervalChange, IntervalChooser
from deadpool.protocol.identity import Layout, Schedule
from deadpool.protocol.messages import CaptureCostReport, Overhead
from deadpool.protocol.permits import CaptureSchedule

LAYOUT = Layout(positions=2, per_node=1, holders=1)


def chosen(every: int = 1, slots: int = 3, budget: float = 0.001, **costs: float) -> IntervalChange | None:
    """With one rank at rest and the other at these costs."""
    interval = IntervalChooser(job_state(LAYOUT, Schedule(every=every)).commits, budget=budget, slots=slots)
    free, taxed = {"stall_s": 0.0, "commit_s": 0.0}, {"stall_s": None, "commit_s": None, **costs}
    interval.on_costs(
        [
            CaptureCostReport(rank=0, every=every, step_s=1.0, **free),
            CaptureCostReport(rank=1, every=every, step_s=1.0, **taxed),
        ]
    )
    return interval.choose()


def test_what_fits_changes_nothing() -> None:
    assert chosen(stall_s=0.001, commit_s=2.0) is None
    assert chosen() is None


def test_widened_to_the_next_power_of_two_that_does() -> None:
    change = chosen(stall_s=0.0011)
    assert change == IntervalChange(every=2, reason="rank 1: captures cost 0.11 % of the step time, more than 0.1 %")
    assert chosen(stall_s=0.021) == IntervalChange(
        every=32, reason="rank 1: captures cost 2.1 % of the step time, more than 0.1 %"
    )
    change = chosen(commit_s=3.2, slots=3)
    assert change == IntervalChange(
        every=2, reason="rank 1: versions take 3.20 s to be committed, 2 slots last for 2.00 s"
    )
    assert chosen(commit_s=3.2, slots=2).every == 4  # type: ignore[union-attr]


def test_intervals_are_multiples_of_the_one_asked_for() -> None:
    assert chosen(every=3, stall_s=0.0031).every == 6  # type: ignore[union-attr]
    assert chosen(every=3, stall_s=0.0029) is None


def test_never_wider_than_documented() -> None:
    assert chosen(stall_s=1000.0).every == 4096  # type: ignore[union-attr]
    assert chosen(every=3, stall_s=1000.0).every == 3072  # type: ignore[union-attr]
    assert chosen(every=4096, stall_s=1000.0) is None


def test_narrower_schedule_asks_for_what_a_wider_one_left_out() -> None:
    table = CaptureSchedule(Schedule(every=4))
    table.add(Schedule(every=2, start=9), settled=3)
    assert [number for number in range(16) if table.captures(number)] == [0, 4, 8, 10, 12, 14]
    assert table.overlooked(Schedule(every=1, start=12), up_to=14) == [13]


def test_schedule_that_versions_are_still_open_under_is_kept() -> None:
    table = CaptureSchedule(Schedule())
    table.add(Schedule(every=4, start=8), settled=5)
    table.add(Schedule(every=8, start=16), settled=6)
    assert [number for number in range(6, 25) if table.captures(number)] == [6, 7, 8, 12, 16, 24]
    table.add(Schedule(every=16, start=32), settled=20)
    assert not table.captures(6), "it is asked of no rank any more"


def measured(share: float, error: float, *, stall_s: float) -> IntervalChange | None:
    """The median rank's measurement counts."""
    interval = IntervalChooser(job_state(LAYOUT, Schedule(every=1)).commits, budget=0.001, slots=3)
    overhead = [Overhead(share=share / 9, error=9.0, count=50), Overhead(share=share, error=error, count=50)]
    interval.on_costs(
        CaptureCostReport(rank=rank, every=1, step_s=1.0, stall_s=stall_s, commit_s=0.0, overhead=overhead[rank])
        for rank in range(2)
    )
    return interval.choose()


def test_what_is_measured_bounds_what_is_estimated() -> None:
    assert measured(0.004, 0.001, stall_s=0.0005) == IntervalChange(
        every=4, reason="steps beside a copy take 0.3 % longer at least, more than 0.1 %"
    )
    assert measured(0.004, 0.0035, stall_s=0.0005) is None, "it may be 0.05 % as well"
    assert measured(0.0002, 0.0003, stall_s=0.02) is None, "by estimate 2 %, and 0.05 % at most"
    assert measured(0.01, 0.02, stall_s=0.004).every == 4, "nothing contradicts the estimate"  # type: ignore[union-attr]
