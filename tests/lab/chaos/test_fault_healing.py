"""When a fault has healed, and what it cost, from what was seen."""

from __future__ import annotations

import json
from dataclasses import replace

from deadpool_lab.chaos.faults.fault import Fault, FaultContext
from deadpool_lab.chaos.plan import CROWDED, Intent, Moment
from deadpool_lab.chaos.runner import InjectedFault
from deadpool_lab.chaos.status_view import StatusView, StepProgress, Tail, newest_phase

HIT_AT = 100.0


class Scratch(Fault):
    kind = "scratch"
    ended = False

    def aim(self, context):
        return True

    def inject(self, context):
        pass

    def end(self, context):
        self.ended = True


def write_steps(folder, rank, steps):
    with (folder / f"rank{rank}.jsonl").open("a") as file:
        for step, ended in steps:
            file.write(json.dumps({"step": step, "ended": ended}) + "\n")


def make_context(folder, done):
    for rank in (0, 1):
        write_steps(folder, rank, [(step, HIT_AT - 1 + 0.1 * step) for step in range(done)])
    context = FaultContext(
        None,
        None,
        StepProgress(folder, 2),
        None,
        StatusView(at=HIT_AT, phase="running", protected=True, watermark=9),
        CROWDED,
    )
    context.steps.read_new()
    return context


def injected_into(context, lasts_s=0.0):
    fault = Scratch(Intent(kind="scratch", moment=Moment.CALM, delay_s=0.0, pick=0.0, again=0.0, long=True))
    fault.lasts_s = lasts_s
    return InjectedFault.begin(1, fault, context, now=HIT_AT, during="running", beside=[])


def test_healed_once_steps_that_began_after_it_are_committed(tmp_path):
    context = make_context(tmp_path, done=10)
    injected = injected_into(context)
    assert injected.at_step == 10
    assert not injected.has_healed(context)
    context.view = replace(context.view, at=HIT_AT + 1, watermark=12)
    assert not injected.has_healed(context), "one step was under way, the next may not have come"
    context.view = replace(context.view, watermark=13)
    assert injected.has_healed(context)
    assert not injected.has_healed(with_view(context, protected=False))
    assert not injected.has_healed(with_view(context, phase="preparing"))
    assert not injected.has_healed(with_view(context, at=HIT_AT - 1)), "seen before it was hit"


def with_view(context, **changes):
    return replace(context, view=replace(context.view, **changes))


def test_what_lasts_has_not_healed_before_it_ends(tmp_path):
    context = make_context(tmp_path, done=10)
    injected = injected_into(context, lasts_s=5.0)
    context.view = replace(context.view, at=HIT_AT + 1, watermark=100)
    assert not injected.has_healed(context)
    assert not injected.is_to_end(context, HIT_AT + 4) and injected.is_to_end(context, HIT_AT + 5)
    injected.end(context, HIT_AT + 5)
    assert injected.fault.ended and not injected.is_to_end(context, HIT_AT + 6)
    assert not injected.has_healed(context), "what was seen is older than its end"
    context.view = replace(context.view, at=HIT_AT + 6)
    assert injected.has_healed(context)


def test_what_is_held_ends_when_the_job_trains_without_it(tmp_path):
    context = make_context(tmp_path, done=10)
    injected = injected_into(context, lasts_s=60.0)
    injected.fault.held = True
    assert not injected.is_to_end(context, HIT_AT + 5)
    context.view = replace(context.view, at=HIT_AT + 5, watermark=13)
    assert injected.is_to_end(context, HIT_AT + 5)


def test_costs_are_counted_to_the_last_recovery(tmp_path):
    context = make_context(tmp_path, done=10)
    injected = injected_into(context)
    for rank in (0, 1):
        write_steps(tmp_path, rank, [(10, HIT_AT + 0.1), (11, HIT_AT + 2.0), (12, HIT_AT + 2.5)])
    context.steps.read_new()
    events = [
        {"what": "planned", "t": HIT_AT - 5, "lost_steps": 7},
        {"what": "planned", "t": HIT_AT + 1, "lost_steps": 2},
        {"what": "resumed", "t": HIT_AT + 2.2},
    ]
    injected.heal(events, context.steps, HIT_AT + 3)
    assert injected.record()["recovery_s"] == 2.2 and injected.record()["pause_s"] == 1.9
    assert injected.record()["plans"] == 1 and injected.record()["steps_redone"] == 2
    injected.heal([], context.steps, HIT_AT + 3)
    assert injected.record()["recovery_s"] == 2.0, "step 10 was under way: 11 is the first that began afterwards"


def test_fault_in_the_background_does_not_answer_for_recoveries_from_others(tmp_path):
    context = make_context(tmp_path, done=10)
    injected = injected_into(context)
    injected.fault.in_background = True
    for rank in (0, 1):
        write_steps(tmp_path, rank, [(10, HIT_AT + 0.1), (11, HIT_AT + 0.5)])
    context.steps.read_new()
    injected.heal([{"what": "resumed", "t": HIT_AT + 400.0}], context.steps, HIT_AT + 600)
    assert injected.record()["first_step_s"] == 0.5


def test_step_counts_when_the_last_rank_has_done_it(tmp_path):
    steps = StepProgress(tmp_path, 2)
    assert (steps.done, steps.begun) == (-1, 0)
    write_steps(tmp_path, 0, [(0, 1.0), (1, 2.0)])
    write_steps(tmp_path, 1, [(0, 3.0)])
    steps.read_new()
    assert (steps.done, steps.begun, steps.ends) == (0, 2, [3.0])
    write_steps(tmp_path, 1, [(0, 4.0), (1, 5.0)])  # one done again
    steps.read_new()
    assert (steps.done, steps.ends) == (1, [3.0, 5.0])


def test_half_a_line_is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert list(tail.new()) == []
    path.write_text('{"what": "go"}\n{"wha')
    assert list(tail.new()) == [{"what": "go"}]
    with path.open("a") as file:
        file.write('t": "fence"}\n')
    assert list(tail.new()) == [{"what": "fence"}] and list(tail.new()) == []


def test_phase_is_what_was_told_last():
    told = [{"what": "go"}, {"what": "fence"}, {"what": "unwound"}]
    assert newest_phase([]) == "forming"
    assert newest_phase(told) == "fencing"
    assert newest_phase([*told, {"what": "planned"}, {"what": "built"}]) == "preparing"
    running = [*told, {"what": "took_over", "running": True}]
    assert newest_phase(running) == "running", "the fence was that of a coordinator nobody heard any more"
    assert newest_phase([*told, {"what": "took_over", "running": False}]) == "fencing"


def test_steps_that_are_done_again_count_as_a_pause(tmp_path):
    """Three of five were lost, and are done again until it has healed: nothing new in all that time."""
    write_steps(tmp_path, 0, [(step, 100.0 + step) for step in range(5)])
    write_steps(tmp_path, 0, [(step, 105.0 + step) for step in range(2, 5)])
    steps = StepProgress(tmp_path, 1)
    steps.read_new()
    assert steps.longest_pause_s(101.5, 110.0) == 110.0 - 104.0
    assert steps.longest_pause_s(101.5, 104.5) == 1.0
