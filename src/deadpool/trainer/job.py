"""A protected training loop: it yields steps, captures a snapshot at each step boundary, and comes back after a fault.

This file has the loop and the boundary of a step. The way from rest to Go after a fault is in recovery.py, a spare's
rehearsal in rehearsal.py, and a stop between two steps that the coordinator asked for in stops.py.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, SupportsIndex

from deadpool.errors import Unwind
from deadpool.journal.entry import Sink
from deadpool.protocol.causes import Miss
from deadpool.protocol.messages import Durable, Finished, Release, Waits
from deadpool.protocol.trainer_core import Capture, SlotAwaited
from deadpool.snapshot.copying.copying import Boundary
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer import job_facts
from deadpool.trainer.adapters import Adapter, wrappers
from deadpool.trainer.adapters.ddp import KeptGradients, ddp_modules
from deadpool.trainer.adapters.wrappers import require_wrappers
from deadpool.trainer.audit import AuditedRank
from deadpool.trainer.capture import slots
from deadpool.trainer.capture.capture import Capturer
from deadpool.trainer.capture.capture_tasks import Budget, CaptureReports, CaptureTarget, CarriedSlot, make_late_capture
from deadpool.trainer.capture.meters import WaitMeter
from deadpool.trainer.current import Superseded
from deadpool.trainer.guards.all_guards import Guards
from deadpool.trainer.job_journal import FAILURE_S, JobJournal
from deadpool.trainer.loop import LoopRules, StepLoop
from deadpool.trainer.optimizer_hook import OptimizerHook
from deadpool.trainer.process import forked_child, plain_start
from deadpool.trainer.process.session import Session
from deadpool.trainer.recovery import recovery, rehearsal, stops, unwinding
from deadpool.trainer.recovery.stops import exhausted_generator
from deadpool.trainer.shares.shares import Makers, StepShares
from deadpool.trainer.step import Step
from deadpool.trainer.step_audit import AuditedStep
from deadpool.trainer.step_reports import StepReports
from deadpool.trainer.structure_news import StructureNews


class Job:
    """A protected training loop. interface.py describes what scripts use of it; the rest is for DeadPool itself."""

    def __init__(
        self,
        session: Session,
        state: ProtectedState,
        adapters: list[Adapter],
        journal: JobJournal,
        makers: Makers | None = None,
        made: Mapping[str, object] | None = None,
    ) -> None:
        """`journal` is among the companions of `state`, so the boundary record carries it. `makers` make objects per
        rank, and `made` are this rank's own."""
        assert session.settings is not None
        self._journal = journal
        self.session, self.state, self.adapters = session, state, adapters
        self.in_place = wrappers.recovers_in_place(session.settings.in_place)
        self.enabled = True  # set to False on all ranks, no version is captured: to measure what protection costs
        self.shares = StepShares(self, makers or {}, made or {})
        self.carried_records: dict[int, bytes] = {}  # of the ranks that this one carries, at the same version
        self.record = b""  # the boundary record of the version that this rank stands at
        self.reports = CaptureReports(session, state)
        self.capturer = Capturer(
            state,
            session.pending_injections,
            allowance_s=self._allowance_s,
            on_observed=self.reports.observed,
            on_copied=self.reports.copied,
            on_given_up=self.reports.given_up,
            on_error=self.reports.failed,
            on_set_aside=self.reports.set_aside,
        )
        self.waits = WaitMeter(lambda what: session.send(Waits(what=what)))
        self.budget = Budget(session.settings.overhead_budget)
        self.step_reports = StepReports(session, self.budget, self.waits)
        self._dry = False
        self._rules = LoopRules()
        self._structure_news = StructureNews(session, state)
        self._audit = AuditedRank(self, journal, self._structure_news)
        self._audited_step = AuditedStep(self, journal)
        self._kept_gradients = KeptGradients(ddp_modules(state.modules))
        self._guards = Guards(session, state, self.shares.carried_objects)
        self.is_in_loop = False  # stays True if the script left its loop early
        self.cannot_redo: str | None = None  # the reason why this process cannot redo the step that was cut off
        self._step_began = time.monotonic()
        self._block_s: float | None = None  # how long the step's block took; None: it has not ended, or was cut off
        if state.is_on_device:
            session.registrar.enable()
        audits = self._audit, self._audited_step
        OptimizerHook(session, state, self.capturer, *audits, is_dry=lambda: self._dry).register()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def steps(self, count: int) -> Iterator[Step]:
        self._rules.begin_loop()
        return self._loop(count)

    def loop(self, count: int | Callable[[], int]) -> StepLoop:
        self._rules.begin_loop()
        self._guards.leave_to_library()
        return StepLoop(self._loop(count), lambda: self.session.core.generation)

    @property
    def rehearses(self) -> bool:
        """This process is a spare that rehearses: nothing that it does may be seen outside."""
        return self.session.groups.detached

    def _loop(self, count: int | Callable[[], int]) -> Generator[Step, None, None]:
        if self.session.groups.detached:
            yield from rehearsal.run(self)
        elif self.session.to_load is not None:
            yield from plain_start.run(self, self.session.to_load)
        else:
            self._begin()
        self.session.end_preparation()
        self.is_in_loop = True
        try:
            while not (self._done(count) and self._finish_with_all_ranks()):
                if self.session.core.is_aborted:
                    recovery.come_back(self)
                elif not self._done(count) and not stops.stop_if_asked(self):
                    yield from self._one_step()
        except GeneratorExit:  # after a break or an exception: the end of the script will tell which
            self.step_reports.tell_pause("left its loop")  # the code after the loop is under no hang timeout
            return
        self.is_in_loop = False

    def _one_step(self) -> Iterator[Step]:
        """The step counts only when the script asks for the next one. Code after the block, a `break` included, is
        therefore part of the step: a rank that comes back to the version before runs it again."""
        self._step_began, self._block_s = time.monotonic(), None
        step = Step(self, self.number)
        yield step
        forked_child.require_trainer()
        self._rules.check(step)
        self._kept_gradients.check()
        if self._block_s is not None:  # a step that was cut off leaves anything behind
            self._guards.at_boundary(step.number)
        self.complete_step()
        self.session.findings.raise_if_to_stop()

    def leave(self) -> None:
        """The script has ended without an error. If it left its loop early, it ends together with the other ranks."""
        if not self.is_in_loop:
            return
        # It only waits for the others from here on: if they wait for it, that is a hang.
        self.step_reports.tell_pause(None)
        if not self._finish_with_all_ranks():
            recovery.restart(self, "a fault came before every rank had ended its script")

    def fail(self) -> None:
        """The script has failed: journal entries that are final by now are still delivered."""
        for journal in self._journals:
            journal.close(FAILURE_S)

    @property
    def number(self) -> int:
        """The number of completed steps, which is the number of the next step."""
        live = self.session.core.live
        assert live is not None
        return live.number

    def pause(self, reason: str) -> AbstractContextManager[None]:
        return self.step_reports.pause(reason)

    def log(self, step: SupportsIndex, /, **values: Any) -> None:
        (self.shares.journal or self._journal).log(operator.index(step), values)

    def log_to(self, *sinks: Sink) -> None:
        self._journal.log_to(sinks)

    def on_final(self, step: SupportsIndex, action: Callable[[], None]) -> None:
        (self.shares.journal or self._journal).on_final(operator.index(step), action)

    def durable(self, step: int, path: str | os.PathLike[str]) -> None:
        if not self._dry:
            self.session.send(Durable(step=int(step), path=os.fspath(path)))

    def digest(self) -> str:
        return self.state.digest()

    def _done(self, count: int | Callable[[], int]) -> bool:
        return self.number >= (count() if callable(count) else count)

    def _finish_with_all_ranks(self) -> bool:
        """Waits until every rank has finished. False: a fault came first, and some rank has to redo a step."""
        self.capturer.finish()
        self.step_reports.close()
        self.waits.close()
        session = self.session
        session.send(Finished(generation=session.core.generation, rank=session.rank))
        try:
            session.expect(Release, session.core.generation)
        except Superseded:
            return False
        session.groups.keep_destroyed()
        final = self._count_last_step()
        for journal in self._journals:
            journal.finish(final)
        return True

    @property
    def _journals(self) -> list[JobJournal]:
        return [self._journal, *self.shares.journals]

    def _count_last_step(self) -> int:
        """Counts the step whose block ended before the script left its loop: the script asked for no further step."""
        if self._block_s is None:
            return self.number
        for journal in self._journals:
            journal.complete_step()
        return self.number + 1

    # --- the boundary of a step --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.session.end_preparation()
        self.session.findings.raise_if_to_stop()
        require_wrappers(self.state.modules)  # the script may have made wrappers since protect()
        job_facts.tell(self.session, self.state)
        with self.session.changed:
            self.session.core.begin()
        self._observe(self.state.mark())
        self._journal.begin()
        self.session.recording_schedule.enter_loop()
        self.state.forget_first_structure()
        self.record = self.state.record()
        self.take_snapshot()

    def enter_step(self, number: int) -> None:
        self.waits.begin_step()
        is_audited = self._audited_step.is_next(number)
        self.session.pending_injections.enter_step(number, self.state, is_audited=is_audited)
        self.shares.enter_step(number)
        for journal in self._journals:
            journal.enter_step(number)
        self._kept_gradients.enter_step(number)
        self._guards.enter_step(number)
        self._audit.enter_step()
        self._audited_step.enter_step(number)
        with self.session.changed:
            self.session.forward_stop.enter_step(self.state.modules)

    def enter_dry_step(self, number: int) -> None:
        self.shares.enter_step(number)
        self._journal.enter_step(number)

    def leave_dry_step(self) -> None:
        self._journal.leave_step()

    def leave_step(self, error: BaseException | None) -> bool:
        """The block has ended; whether the step counts is not known yet. Returns whether to suppress the exception: a
        fault caused it, and the step will be yielded again."""
        if forked_child.is_child():
            return False
        for journal in self._journals:
            journal.leave_step()
        self.waits.end_step()
        self.session.forward_stop.leave_step()
        self.session.pending_injections.leave_step(completed=error is None)
        self._audit.leave_step(completed=error is None)
        self._audited_step.leave_step()
        if error is None:
            self.shares.require_done()
            self.session.pending_injections.updated(self.state)
            self._guards.leave_step(self.number)
            self._block_s = time.monotonic() - self._step_began
            self.session.recording_schedule.block_ended()
            return True
        if isinstance(error, Exception):
            self.session.leave_if_device_broke()
        by_fault = isinstance(error, Unwind) or (
            isinstance(error, Exception) and unwinding.was_caused_by_fault(self, error)
        )
        if not (by_fault and self.session.core.is_aborted):
            return False
        self.cannot_redo = exhausted_generator(error)
        return True

    def complete_step(self) -> None:
        """Counts the step, unless its block was cut off or a fault came. The abort flag is checked (in core.end_step)
        only after all work of the step was enqueued."""
        if self._block_s is None:
            return
        session, began, block_s = self.session, time.monotonic(), self._block_s
        self._block_s = None
        self._await_device()
        # Normally optimizer.step() has settled it. If not, the next boundary's clones would overwrite what is copied.
        self.capturer.settle()
        boundary = self.state.mark()
        unwinding.await_fence_if_peer_lost(self)
        with session.changed:
            counts = session.core.end_step()
        if not counts:
            return
        for journal in self._journals:
            journal.complete_step()
        self._observe(boundary)
        step_s = block_s + time.monotonic() - began
        session.unwind_watch.stepped(step_s)
        self.step_reports.completed(self.number, step_s, list(self.capturer.costs()))
        session.recording_schedule.step_completed()
        session.code_watch.step_completed()
        if self.enabled and not (self._audit.at_boundary() or self._audited_step.at_boundary()):
            self.record = self.state.record()
            self._structure_news.tell(self.number)
            self.carried_records = self.shares.records(self.record)
            self.take_snapshot()
            self.shares.report()
        else:
            self._skip_capture()
        for journal in self._journals:
            journal.settle(session.final_number)
        session.pending_injections.between(self.number - 1)
        self._audited_step.await_fence()

    def _await_device(self) -> None:
        """Keeps the host at most one step ahead: the last version has to be observed before the next one is reached."""
        core = self.session.core
        with self.waits.waiting():
            self.session.wait(
                lambda: core.is_aborted or not core.is_far_ahead or self.reports.device_error is not None or None
            )
        if self.reports.device_error is not None:
            raise self.reports.device_error

    def _observe(self, boundary: Boundary) -> None:
        live = self.session.core.live
        assert live is not None
        self.capturer.reached(live, boundary)

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        """Starts the capture of the version just reached, and returns at once."""
        self.session.let_go_of_segments(self.state.release_slots)
        slots.ensure(self)
        stops.await_slot(self)
        with self.session.changed:
            decision = self.session.core.plan_capture()
        match decision:
            case Capture():
                self.capturer.begin(self._target(decision))
            case SlotAwaited():
                self.capturer.begin_late(make_late_capture(self.session, decision, self._target))

    @property
    def has_other_shards(self) -> bool:
        return self._structure_news.has_other_shards

    @property
    def records(self) -> tuple[bytes, ...]:
        """The records of all ranks whose work this process does, its own first."""
        return (self.record, *self.carried_records.values())

    def _target(self, capture: Capture) -> CaptureTarget:
        """The record is that of the last boundary, which stays until the next one: whatever begins later is settled."""
        slot, geometry = self.session.slot(capture.slot)
        carried = tuple(
            CarriedSlot(rank, *self.session.slot(ref), self.carried_records[rank]) for rank, ref in capture.carried
        )
        return CaptureTarget(capture, slot, geometry, self.record, carried)

    def _skip_capture(self) -> None:
        """Misses a capture. Without a boundary record no plan may keep this rank's live state."""
        core = self.session.core
        with self.session.changed:
            core.restoring()
            missed = core.missed(core.live, Miss.SWITCHED_OFF, "switched off") if core.live else None
        if missed is not None:
            self.session.send(missed)

    def _allowance_s(self) -> float | None:
        return self.budget.allowance_s(self.session.core.every)

    # --- for recovery and rehearsal ----------------------------------------------------------------------------------

    def resume(self, number: int) -> None:
        """Steps from `number` on are computed again."""
        for journal in self._journals:
            journal.resume(number)
        self.step_reports.resumed(number)
        self.waits.restart()
        self._audit.resumed(number)
        self._audited_step.resumed(number)

    def set_dry(self, dry: bool) -> None:
        self._dry = dry
        self._journal.set_dry(dry)
