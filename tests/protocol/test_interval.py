"""How wide the interval is chosen, and what it takes to change it. How changes are ordered is in the transcripts."""

from __future__ import annotations

from benches import job_state
from msgspec import structs

from deadpool.protocol.causes import Miss, Widening
from deadpool.protocol.coordinator.commits.interval import (
    ROOM_COMMITS_MEASURED,
    IntervalChange,
    IntervalChooser,
    IntervalController,
)
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.effects import Emit
from deadpool.protocol.identity import LEFT_OUT, LEFT_OUT_OF, LEFT_OUT_RARELY, Address, Generation, Layout, Schedule
from deadpool.protocol.messages import CaptureCostReport, Missed, Overhead, SlotReport
from deadpool.protocol.permits import CaptureSchedule

FIRST = Generation(1, 1)
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
    waits = "rank 1: the optimizer waits for copies for"
    change = chosen(stall_s=0.0011)
    assert change == IntervalChange(
        every=2, reason=f"{waits} 0.11 % of the step time, more than 0.1 %", cause=Widening.WAITS
    )
    assert chosen(stall_s=0.021) == IntervalChange(
        every=32, reason=f"{waits} 2.1 % of the step time, more than 0.1 %", cause=Widening.WAITS
    )
    change = chosen(commit_s=3.2, slots=3)
    assert change == IntervalChange(
        every=2,
        reason="rank 1: versions take 3.20 s to be committed, 2 slots last for 2.00 s",
        cause=Widening.SLOTS,
    )
    assert chosen(commit_s=3.2, slots=2).every == 4  # type: ignore[union-attr]


def test_one_long_wait_among_short_ones_widens_nothing() -> None:
    assert chosen(stall_s=0.5, stall_error_s=0.6) is None
    assert chosen(stall_s=0.5, stall_error_s=0.4).every == 128  # type: ignore[union-attr]


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
        every=4, reason="steps beside a copy take 0.225 % longer at least, more than 0.1 %", cause=Widening.COST
    )
    assert measured(0.004, 0.002, stall_s=0.0005) is None, "one comparison in forty says so by chance"
    assert measured(0.004, 0.0035, stall_s=0.0005) is None, "it may be 0.05 % as well"
    assert measured(0.0002, 0.0003, stall_s=0.02) is None, "waits of 2 %, and 0.05 % at most"
    assert measured(0.01, 0.02, stall_s=0.004).every == 4, "nothing contradicts the waits"  # type: ignore[union-attr]


class Running:
    """A chooser with a job whose every version is committed, and reports of both ranks at each."""

    def __init__(self, every: int) -> None:
        self.job = job_state(LAYOUT, Schedule(every=every))
        self.chooser = IntervalChooser(self.job.commits, budget=0.005, slots=3)

    @property
    def every(self) -> int:
        return self.chooser.every

    def versions_until_a_change(self, share: float | None, at_most: int) -> int:
        """The cost is that of a capture of every version: it falls as the interval widens. None: it is not known."""
        for count in range(at_most):
            self.job.commits.count += 1
            known = share is not None and self.every in LEFT_OUT
            overhead = Overhead(share=(share or 0.0) / self.every, error=0.001, count=50) if known else None
            self.chooser.on_costs(
                CaptureCostReport(rank=rank, every=self.every, step_s=1.0, stall_s=0.0, commit_s=0.5, overhead=overhead)
                for rank in range(2)
            )
            if (change := self.chooser.choose()) is not None:
                start = self.chooser._commits.timetable.newest.start + 8
                self.job.commits.timetable.add(Schedule(every=change.every, start=start), settled=start)
                return count + 1
        return at_most


def test_measured_cost_that_is_over_the_budget_is_found_out_again_only_after_long() -> None:
    running = Running(every=1)
    assert running.versions_until_a_change(0.012, 10) == 1 and running.every == 4
    assert running.versions_until_a_change(None, 1000) == ROOM_COMMITS_MEASURED and running.every == 2
    assert running.versions_until_a_change(0.014, 10) == 1 and running.every == 4, "0.7 % in every second step"
    assert running.versions_until_a_change(None, 5000) == 2 * ROOM_COMMITS_MEASURED


def test_interval_is_narrowed_where_the_measured_cost_allows_it() -> None:
    running = Running(every=2)
    running.chooser.user_every = running.chooser._least = 1
    assert running.versions_until_a_change(0.006, 1000) == 1000 and running.every == 2, "half as much again to spare"
    assert running.versions_until_a_change(0.002, 1000) < 1000 and running.every == 1
    assert running.versions_until_a_change(0.002, 1000) == 1000


def test_a_budget_that_cannot_be_kept_is_said_once_per_cause() -> None:
    job = job_state(LAYOUT, Schedule())
    job.settings = structs.replace(job.settings, overhead_budget=0.001)
    chooser = IntervalChooser(job.commits, budget=0.001, slots=3)
    controller = IntervalController(job, chooser)
    for cause in (Widening.WAITS, Widening.WAITS, Widening.SLOTS):
        controller._say_once(IntervalChange(every=2, reason="so", cause=cause))
    controller._say_once(IntervalChange(every=1, reason="room", cause=None))
    said = [effect.event.detail for effect in job.out.take() if isinstance(effect, Emit)]
    assert [each["widened_by"] for each in said] == ["waits", "slots"]
    assert all(each["remedy"] for each in said)


def with_slots(*reports: tuple[str, int, int, Widening], send_s: float | None = None) -> IntervalChooser:
    """Steps of 0.42 s, and 0.98 s until a version is committed. Reports: node, least, at_most, limit."""
    chooser = IntervalChooser(job_state(LAYOUT).commits, budget=0.005, slots=0)
    for node, least, at_most, limit in reports:
        chooser.on_slots(node, SlotReport(least=least, at_most=at_most, limit=limit))
    chooser.on_costs(
        CaptureCostReport(rank=rank, every=1, step_s=0.42, stall_s=0.0, commit_s=0.98, send_s=send_s)
        for rank in range(2)
    )
    return chooser


def test_nothing_is_widened_where_slots_can_grow() -> None:
    assert with_slots(("n0", 3, 8, Widening.SLOTS), ("n1", 3, 8, Widening.SLOTS)).choose() is None


def test_node_with_the_least_memory_decides() -> None:
    change = with_slots(("n0", 3, 8, Widening.SLOTS), ("n1", 2, 2, Widening.MEMORY)).choose()
    assert change == IntervalChange(
        every=4,
        reason="rank 0: versions take 0.98 s to be committed, 1 slot lasts for 0.42 s (node n1 has memory for no more)",
        cause=Widening.MEMORY,
    )


def test_slots_do_not_help_where_a_version_takes_longer_to_be_sent_than_a_step() -> None:
    change = with_slots(("n0", 8, 8, Widening.SLOTS), send_s=0.9).choose()
    assert change == IntervalChange(
        every=4,
        reason="rank 0: a version takes 0.90 s to be sent, and one is captured every 0.42 s",
        cause=Widening.BANDWIDTH,
    )
    assert with_slots(("n0", 8, 8, Widening.SLOTS), send_s=0.4).choose() is None


def test_misses_for_want_of_a_slot_wait_for_the_slots_that_come() -> None:
    """Unless the node of the rank that missed can have no more."""

    def after_misses(report: tuple[str, int, int, Widening]) -> IntervalChange | None:
        chooser = with_slots(report)
        chooser.costs.clear()
        chooser._commits.ledger.nodes = ["n0", "n1"]
        for number in range(1, 4):
            chooser.on_missed(Missed(generation=FIRST, rank=0, number=number, cause=Miss.NO_SLOT, reason=""))
        return chooser.choose()

    assert after_misses(("n0", 3, 8, Widening.SLOTS)) is None
    assert after_misses(("n0", 8, 8, Widening.SLOTS)).every == 2  # type: ignore[union-attr]
    assert after_misses(("n1", 3, 8, Widening.SLOTS)) is None, "this node has not told yet what it can have"


def test_misses_count_where_a_user_says_how_many_slots_there_are() -> None:
    chooser = IntervalChooser(job_state(LAYOUT).commits, budget=0.005, slots=2)
    chooser._commits.ledger.nodes = ["n0", "n1"]
    for number in range(1, 4):
        chooser.on_missed(Missed(generation=FIRST, rank=0, number=number, cause=Miss.NO_SLOT, reason=""))
    assert chooser.choose().every == 2  # type: ignore[union-attr]


def test_slow_first_versions_widen_nothing_before_it_is_certain_that_all_are() -> None:
    """Connections are made and memory is touched: what the first three took says nothing of the others."""

    def after(least_s: float | None, **medians: float) -> IntervalChange | None:
        chooser = IntervalChooser(job_state(LAYOUT).commits, budget=0.005, slots=0)
        for node in ("n0", "n1"):
            chooser.on_slots(node, SlotReport(least=3, at_most=3, limit=Widening.MEMORY))
        told = {"commit_s": 0.5, **medians}
        least = {f"{name.removesuffix('_s')}_least_s": least_s for name in medians}
        chooser.on_costs(
            CaptureCostReport(rank=rank, every=1, step_s=0.42, stall_s=0.0, **told, **least) for rank in range(2)
        )
        return chooser.choose()

    assert after(0.0, send_s=0.9) is None and after(0.0, commit_s=1.2) is None
    assert after(0.41, send_s=0.9) is None and after(0.83, commit_s=1.2) is None
    assert after(0.5, send_s=0.9).cause is Widening.BANDWIDTH  # type: ignore[union-attr]
    assert after(0.9, commit_s=1.2).cause is Widening.MEMORY  # type: ignore[union-attr]


def test_medians_narrow_an_interval() -> None:
    """What is certain is less than what is likely: a narrower interval would be taken back."""
    running = Running(every=2)
    running.chooser.user_every = running.chooser._least = 1
    report = CaptureCostReport(rank=0, every=2, step_s=1.0, stall_s=0.0, commit_s=3.0, commit_least_s=0.1)
    for _ in range(100):
        running.job.commits.count += 1
        running.chooser.on_costs([report, structs.replace(report, rank=1)])
        assert running.chooser.choose() is None


def left_out_by(now: int, overhead: Overhead | None, every: int = 1) -> int | None:
    interval = IntervalChooser(job_state(LAYOUT, Schedule(every=every, left_out_of=now)).commits, budget=0.005, slots=3)
    interval.on_costs(
        CaptureCostReport(rank=rank, every=every, step_s=1.0, stall_s=0.0, commit_s=0.5, overhead=overhead)
        for rank in range(2)
    )
    assert interval.choose() is None
    return interval.choose_left_out()


def test_captures_are_left_out_rarely_once_their_cost_is_known_to_be_within_the_budget() -> None:
    cheap = Overhead(share=0.001, error=0.003, count=40)
    assert left_out_by(LEFT_OUT_OF, cheap) == left_out_by(LEFT_OUT_OF, cheap, every=2) == LEFT_OUT_RARELY
    assert left_out_by(LEFT_OUT_OF, structs.replace(cheap, count=20)) is None, "too few comparisons"
    assert left_out_by(LEFT_OUT_OF, structs.replace(cheap, error=0.005)) is None, "it may cost more"
    assert left_out_by(LEFT_OUT_OF, None) is None
    assert left_out_by(0, cheap) is None, "without a budget none is left out"
    assert left_out_by(LEFT_OUT_OF, cheap, every=4) is None, "there are steps without a copy anyway"


def test_captures_are_left_out_more_often_again_where_they_seem_to_cost_more() -> None:
    assert left_out_by(LEFT_OUT_RARELY, Overhead(share=0.004, error=0.003, count=40)) is None
    assert left_out_by(LEFT_OUT_RARELY, Overhead(share=0.006, error=0.003, count=40)) == LEFT_OUT_OF


def test_what_was_measured_counts_on_where_only_what_is_left_out_changes() -> None:
    job = job_state(LAYOUT, Schedule(every=1, left_out_of=LEFT_OUT_OF))
    job.settings = structs.replace(job.settings, overhead_budget=0.005)
    chooser = IntervalChooser(job.commits, budget=0.005, slots=3)
    chooser.on_costs(
        CaptureCostReport(
            rank=rank,
            every=1,
            step_s=1.0,
            stall_s=0.0,
            commit_s=0.5,
            overhead=Overhead(share=0.0, error=0.001, count=40),
        )
        for rank in range(2)
    )
    for position, name in enumerate(("n0", "n1")):
        member = Member(name, "1", Address(host="h", port=1), False, heard=0.0)
        member.position, member.steps = position, {position: 2000}
        job.add(member)
    IntervalController(job, chooser).adjust(0.0)
    newest = job.commits.timetable.newest
    assert (newest.every, newest.left_out_of) == (1, LEFT_OUT_RARELY) and newest.start > 2000
    assert chooser.overhead is not None
    assert not any(isinstance(effect, Emit) for effect in job.out.take()), "the interval is the same"
