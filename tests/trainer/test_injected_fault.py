"""A fault that waits for its moment in a trainer: when it is injected, what was reported before, when it is missed."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import torch

from deadpool.protocol.identity import Generation, Schedule
from deadpool.protocol.messages import Injected, Injection, Report, Seat
from deadpool.trainer.process import injected_fault
from deadpool.trainer.process.injected_fault import InjectionTriggers
from deadpool.trainer.step import DryStep, Step


class SessionTwin:
    """The part of a session that InjectionTriggers use. Messages and signals go into one list, in order."""

    def __init__(self) -> None:
        self.name = "n1.0"
        self.role = Seat(generation=Generation(1, 1), cause="start", rank=3, resume=None, schedule=Schedule())
        self.changed = threading.Condition()
        self.happened: list[Any] = []
        self.pending_injections = InjectionTriggers(self)  # type: ignore[arg-type]

    def send(self, message: Any) -> None:
        words = message.records[0]["what"] if isinstance(message, Report) else message
        self.happened.append(words)


class JobTwin:
    """A loop around a model of one layer, as Job calls InjectionTriggers."""

    def __init__(self, session: SessionTwin) -> None:
        self.pending_injections = session.pending_injections
        self.layer = torch.nn.Linear(4, 4)

    def enter_step(self, number: int) -> None:
        self.pending_injections.enter_step(number, None, is_audited=False)

    def leave_step(self, error: BaseException | None) -> bool:
        self.pending_injections.leave_step(completed=error is None)
        return False

    def enter_dry_step(self, number: int) -> None:
        """A dry step injects no faults."""

    def leave_dry_step(self) -> None:
        """A dry step injects no faults."""

    def train(self, number: int, step: type[Step] = Step) -> None:
        with step(self, number):  # type: ignore[arg-type]
            self.layer(torch.ones(2, 4)).sum().backward()
        if step is Step:
            self.pending_injections.between(number)


@pytest.fixture
def session(monkeypatch) -> SessionTwin:
    twin = SessionTwin()
    monkeypatch.setattr(injected_fault.os, "kill", lambda pid, sig: twin.happened.append(signal.Signals(sig).name))
    return twin


def injection(at: str, step: int | None, sig: int = signal.SIGKILL) -> Injection:
    return Injection(signal=sig, rank=None, at=at, step=step)


def fell(which: Injection) -> list[Any]:
    """In this order: the agent knows before the process is gone."""
    return ["injection_set", "injected", Injected(injection=which, hit=True), signal.Signals(which.signal).name]


def missed(which: Injection) -> list[Any]:
    return ["injection_set", "injection_missed", Injected(injection=which, hit=False)]


def test_falls_in_its_step_and_no_other(session):
    waiting = injection("backward", 2, signal.SIGSTOP)
    session.pending_injections.add(waiting)
    job = JobTwin(session)
    job.train(0)
    job.train(1)
    assert session.happened == ["injection_set"]
    job.train(2)
    job.train(3)
    assert session.happened == fell(waiting)


def test_steps_without_an_injection_are_not_watched(session):
    session.pending_injections.add(injection("forward", 1))
    session.pending_injections.enter_step(0, None, is_audited=False)
    assert torch._C._len_torch_dispatch_stack() == 0
    session.pending_injections.enter_step(1, None, is_audited=False)
    assert torch._C._len_torch_dispatch_stack() == 1
    session.pending_injections.leave_step(completed=False)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_rehearsal_is_never_hit(session):
    session.pending_injections.add(injection("forward", 0))
    JobTwin(session).train(0, DryStep)
    assert session.happened == ["injection_set"]


def test_moment_that_did_not_come_is_told_at_the_end_of_its_step(session):
    waiting = injection("clip", 1)
    session.pending_injections.add(waiting)
    job = JobTwin(session)
    job.train(0)
    assert session.happened == ["injection_set"]
    job.train(1)
    assert session.happened == missed(waiting)


def test_step_that_was_over_when_the_order_came_is_told_as_missed(session):
    waiting = injection("between", 1)
    session.pending_injections.add(waiting)
    JobTwin(session).train(5)
    assert session.happened == missed(waiting)


def test_step_that_is_computed_again_is_still_waited_for(session):
    waiting = injection("optimizer", 1)
    session.pending_injections.add(waiting)
    job = JobTwin(session)
    with pytest.raises(RuntimeError), Step(job, 1):  # type: ignore[arg-type]
        raise RuntimeError("a peer is gone")
    optimizer = torch.optim.SGD(job.layer.parameters(), lr=0.1)
    with Step(job, 1):  # type: ignore[arg-type]
        job.layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert session.happened == fell(waiting)


def test_order_that_is_told_with_every_seat_counts_once(session):
    waiting = injection("between", 1)
    session.pending_injections.add(waiting)
    session.pending_injections.add(waiting)
    session.pending_injections.between(1)
    session.pending_injections.between(1)
    assert session.happened == fell(waiting)


def test_two_moments_of_one_step_the_first_falls(session):
    session.pending_injections.add(injection("backward", 0))
    session.pending_injections.add(injection("forward", 0))
    JobTwin(session).train(0)
    assert session.happened[2:5] == fell(injection("forward", 0))[1:]


def test_after_the_next_recovery_whichever_step(session):
    waiting = injection("recovered", None)
    session.pending_injections.add(waiting)
    JobTwin(session).train(0)
    session.pending_injections.recovered()
    assert session.happened == fell(waiting)


def copy(pending_injections: InjectionTriggers, number: int, pieces: int, given_up_at: int = 99) -> list[bool]:
    """As the copying thread does it; what it was told before each piece."""
    asked = pending_injections.capturing(number, lambda: len(answers) >= given_up_at)
    answers: list[bool] = []
    for _ in range(pieces):
        answers.append(asked())
        if answers[-1]:
            return answers
    pending_injections.captured(number)
    return answers


def test_capture_is_hit_between_two_pieces(session):
    waiting = injection("capture", 4)
    session.pending_injections.add(waiting)
    copy(session.pending_injections, 3, pieces=3)
    assert session.happened == ["injection_set"]
    asked = session.pending_injections.capturing(4, lambda: False)
    assert not asked()
    assert session.happened == ["injection_set"]
    assert not asked()
    assert session.happened == fell(waiting)


def test_capture_of_one_piece_is_hit_before_it_is_declared(session):
    waiting = injection("capture", 4)
    session.pending_injections.add(waiting)
    copy(session.pending_injections, 4, pieces=1)
    assert session.happened == fell(waiting)


def test_capture_that_is_given_up_is_a_miss(session):
    waiting = injection("capture", 4)
    session.pending_injections.add(waiting)
    assert copy(session.pending_injections, 4, pieces=3, given_up_at=0) == [True]
    session.pending_injections.between(3)
    assert session.happened == ["injection_set"]
    session.pending_injections.between(4)
    assert session.happened == missed(waiting)
