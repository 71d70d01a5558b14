"""The seal rule: what a trainer may claim about its state, and what it may not."""

from __future__ import annotations

from notation import geometry, slot, version

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import Generation, Schedule, Version
from deadpool.protocol.messages import Captured
from deadpool.protocol.trainer_core import Capture, SlotAwaited, TrainerCore

FIRST, SECOND = Generation(1, 1), Generation(1, 2)


def running(every: int = 1) -> TrainerCore:
    core = TrainerCore()
    core.take_seat(FIRST, 0, Schedule(every=every))
    core.begin()
    assert core.observed(Version(FIRST, 0))
    core.grant(FIRST, slot("1/0"))
    core.grant(FIRST, slot("1/1"))
    return core


def reach(core: TrainerCore) -> Version:
    """One more step, of which only the host knows: its work is enqueued."""
    core.optimizer_began()
    assert core.end_step()
    assert core.live is not None
    return core.live


def test_capture_of_an_unaborted_step_is_sealed() -> None:
    core = running()
    capture = core.plan_capture()
    assert isinstance(capture, Capture)
    assert core.copied(capture, 8) == Captured(
        generation=FIRST, version=Version(FIRST, 0), slot=slot("1/0"), record_bytes=8
    )


def test_step_that_ends_after_the_flag_does_not_count() -> None:
    core = running()
    core.optimizer_began()
    core.halt(SECOND)
    assert not core.end_step()
    live = core.rest()
    assert live.version == Version(FIRST, 0)
    assert not live.clean


def test_copy_that_ends_after_the_flag_is_nobodys_evidence() -> None:
    core = running()
    capture = core.plan_capture()
    assert isinstance(capture, Capture)
    core.halt(SECOND)
    assert core.copied(capture, 8) is None
    assert core.gave_up(capture, Miss.TOO_SLOW, "late") is None


def test_flag_between_steps_leaves_a_clean_state() -> None:
    core = running()
    assert core.observed(reach(core))
    core.halt(SECOND)
    assert core.rest().clean
    assert core.rest().version == Version(FIRST, 1)


def test_step_that_was_only_enqueued_when_the_flag_came_is_not_clean() -> None:
    core = running()
    reached = reach(core)
    core.halt(SECOND)
    assert not core.observed(reached)
    assert not core.rest().clean


def test_garbage_after_an_abort_is_never_sealed() -> None:
    """The collective of the step was aborted: its optimizer ran on garbage, its copy is whole, nobody may know it."""
    core = running()
    reached = reach(core)
    capture = core.plan_capture()
    assert isinstance(capture, Capture) and capture.version == reached
    core.halt(SECOND)
    core.observed(reached)
    assert core.copied(capture, 8) is None
    assert not core.rest().clean


def test_copy_of_a_version_that_was_not_observed_is_nobodys_evidence() -> None:
    core = running()
    reached = reach(core)
    capture = core.plan_capture()
    assert isinstance(capture, Capture)
    assert core.copied(capture, 8) is None
    assert core.observed(reached)
    assert core.copied(capture, 8) is not None


def test_observed_after_the_next_optimizer_began_is_evidence_but_not_clean() -> None:
    core = running()
    reached = reach(core)
    capture = core.plan_capture()
    assert isinstance(capture, Capture)
    core.optimizer_began()
    assert core.observed(reached)
    assert not core.clean
    assert core.copied(capture, 8) is not None


def test_observation_of_an_older_version_does_not_make_a_newer_one_clean() -> None:
    core = running()
    older = reach(core)
    newer = reach(core)
    assert core.observed(older)
    assert not core.clean and core.is_far_ahead
    assert core.observed(newer)
    assert core.clean and not core.is_far_ahead


def test_late_observation_does_not_undo_the_start_of_a_restore() -> None:
    core = running()
    reached = reach(core)
    core.restoring()
    core.observed(reached)
    assert not core.clean


def test_observation_of_another_generation_says_nothing() -> None:
    core = running()
    reached = reach(core)
    core.halt(SECOND)
    core.restored(SECOND, Version(FIRST, 0), Schedule())
    assert not core.observed(reached)
    assert core.observed_version == Version(FIRST, 0)


def test_flag_only_grows() -> None:
    core = running()
    core.halt(SECOND)
    core.halt(FIRST)
    assert core.is_aborted


def test_restored_version_keeps_its_birth_and_the_next_has_its_own() -> None:
    core = running()
    core.halt(SECOND)
    core.rest()
    core.restoring()
    assert not core.clean
    core.restored(SECOND, version("v4@1.1"), Schedule())
    assert not core.is_aborted
    core.optimizer_began()
    assert core.end_step()
    assert core.live == version("v5@1.2")


def without_a_slot() -> tuple[TrainerCore, SlotAwaited]:
    core = running()
    core.plan_capture()
    core.plan_capture()
    awaited = core.plan_capture()
    assert isinstance(awaited, SlotAwaited)
    return core, awaited


def test_no_free_slot_is_said() -> None:
    core, awaited = without_a_slot()
    missed = core.slot_never_came(awaited)
    assert missed is not None and (missed.number, missed.cause) == (0, Miss.NO_SLOT)


def test_slot_that_is_granted_before_the_optimizer_steps_is_not_too_late() -> None:
    core, awaited = without_a_slot()
    assert core.capture_late(awaited) is None
    core.grant(FIRST, slot("1/0"))
    capture = core.capture_late(awaited)
    assert capture is not None and (capture.version, capture.slot) == (awaited.version, slot("1/0"))
    assert not core.has_slots


def test_slot_that_is_granted_after_the_optimizer_stepped_is_not_for_the_version_before() -> None:
    core, awaited = without_a_slot()
    core.optimizer_began()
    core.grant(FIRST, slot("1/0"))
    assert core.capture_late(awaited) is None
    core.end_step()
    assert core.capture_late(awaited) is None and core.has_slots


def test_slot_that_was_awaited_under_an_older_generation_is_neither_taken_nor_missed() -> None:
    core, awaited = without_a_slot()
    core.halt(SECOND)
    assert core.slot_never_came(awaited) is None
    core.rest()
    core.restored(SECOND, awaited.version, Schedule())
    core.grant(SECOND, slot("1/0"))
    assert core.capture_late(awaited) is None and core.slot_never_came(awaited) is None


def test_slot_of_a_capture_given_up_stays() -> None:
    core = running()
    first = core.plan_capture()
    assert isinstance(first, Capture)
    core.gave_up(first, Miss.TOO_SLOW, "slow")
    captures = [core.plan_capture(), core.plan_capture()]
    assert [c.slot for c in captures if isinstance(c, Capture)] == [slot("1/1"), slot("1/0")]


def test_grants_of_another_generation_are_refused() -> None:
    core = running()
    core.rest()
    core.grant(SECOND, slot("1/0"))
    assert not core.has_slots
    core.halt(SECOND)
    core.grant(FIRST, slot("1/0"))
    assert not core.has_slots


def test_grant_that_crossed_a_declaration_is_refused() -> None:
    core = running()
    core.attach(1, geometry(100))
    core.attach(2, geometry(300))
    assert core.declare(geometry(300))
    assert not core.has_slots
    core.grant(FIRST, slot("1/0"))
    assert not core.has_slots
    core.grant(FIRST, slot("2/0"))
    assert core.has_slots
    assert not core.declare(geometry(300))


def test_new_interval_begins_where_it_was_told_to() -> None:
    core = running()
    assert core.reschedule(FIRST, Schedule(every=2, start=3)) == []
    assert [captured_next(core) for _ in range(5)] == [True, True, False, True, False]


def test_narrower_interval_that_was_heard_of_too_late_is_owned_up_to() -> None:
    core = running(every=4)
    assert [captured_next(core) for _ in range(7)] == [False, False, False, True, False, False, False]
    missed = core.reschedule(FIRST, Schedule(every=2, start=3))
    assert [each.number for each in missed] == [6], "4 was captured"
    assert [captured_next(core) for _ in range(2)] == [True, False]


def test_wider_interval_that_was_heard_of_too_late_has_nothing_to_say() -> None:
    core = running()
    assert [captured_next(core) for _ in range(4)] == [True, True, True, True]
    assert core.reschedule(FIRST, Schedule(every=4, start=2)) == []
    assert [captured_next(core) for _ in range(4)] == [False, False, False, True]


def test_interval_of_another_generation_or_under_a_fence_is_not_heeded() -> None:
    core = running()
    assert core.reschedule(SECOND, Schedule(every=2, start=1)) == []
    core.halt(SECOND)
    assert core.reschedule(FIRST, Schedule(every=2, start=1)) == []
    core.restored(SECOND, version("v4@1.1"), Schedule(every=3))
    assert [captured_next(core) for _ in range(2)] == [False, True], "the plan's: versions 5 and 6"


def captured_next(core: TrainerCore) -> bool:
    """Whether the version after the next step is one to be captured, slot or not."""
    core.optimizer_began()
    assert core.end_step()
    return core.plan_capture() is not None


def test_unscheduled_version_is_not_captured_unless_it_was_resumed_at() -> None:
    core = running(every=2)
    core.optimizer_began()
    core.end_step()
    assert core.plan_capture() is None
    core.restored(SECOND, version("v1@1.1"), Schedule(every=2))
    core.grant(SECOND, slot("1/0"))
    assert isinstance(core.plan_capture(), Capture)


# --- standing still because somebody asked ---------------------------------------------------------------------------


def step_to(core: TrainerCore, number: int) -> list[int]:
    """Versions that are captured on the way."""
    captured = []
    while core.live is not None and core.live.number < number:
        assert core.observed(reach(core))
        decision = core.plan_capture()
        if isinstance(decision, Capture):
            captured.append(decision.version.number)
            core.gave_up(decision, Miss.TOO_SLOW, "its slot is needed again")
    return captured


def test_asked_in_time_it_captures_that_version_and_stands() -> None:
    core = running(every=100)
    core.stand(FIRST, 3)
    assert step_to(core, 3) == [3]
    assert core.must_stand
    core.proceed(FIRST)
    assert not core.must_stand


def test_asked_too_late_it_stands_at_the_next_version_and_captures_nothing() -> None:
    core = running(every=100)
    assert step_to(core, 3) == []
    core.stand(FIRST, 3)
    assert not core.must_stand
    assert step_to(core, 4) == [] and core.must_stand
    core.stand(FIRST, 6)
    assert not core.must_stand, "told anew, it goes on"
    assert step_to(core, 6) == [6] and core.must_stand


def test_who_stands_rests_clean() -> None:
    core = running(every=100)
    core.stand(FIRST, 1)
    step_to(core, 1)
    core.halt(SECOND)
    live = core.rest()
    assert (live.version, live.clean) == (Version(FIRST, 1), True)


def test_after_a_recovery_nobody_stands() -> None:
    core = running()
    core.stand(FIRST, 1)
    core.halt(SECOND)
    core.stand(FIRST, 1)
    core.restored(SECOND, version("v1@1.1"), Schedule())
    assert not core.must_stand
    core.stand(FIRST, 2)
    step_to(core, 2)
    assert not core.must_stand, "an order of another generation"


def test_carried_ranks_are_captured_together_with_their_carrier_or_not_at_all() -> None:
    core = running()
    core.carry([2])
    assert isinstance(core.plan_capture(), SlotAwaited), "no slot for rank 2"
    core.grant(FIRST, slot("2/0"), carried=2)
    core.grant(FIRST, slot("3/0"), carried=3)
    reach(core)
    core.observed(Version(FIRST, 1))
    capture = core.plan_capture()
    assert isinstance(capture, Capture) and capture.carried == ((2, slot("2/0")),), "rank 3 is carried by another"
    (carried,) = core.copied_carried(capture, {2: 9})
    assert (carried.rank, carried.slot, carried.record_bytes) == (2, slot("2/0"), 9)
    core.gave_up(capture, Miss.TOO_SLOW, "late")
    assert core.has_slots, "it keeps both slots"
    core.halt(SECOND)
    assert core.copied_carried(capture, {2: 9}) == [], "no evidence after the flag"
