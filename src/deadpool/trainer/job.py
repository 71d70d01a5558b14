"""A protected training loop: steps that survive, snapshots at their boundaries, the way back after a fault.

Four parts: here the boundary of a step; in recovery.py the walk from rest to Go; in rehearsal.py what a spare does; in
standing.py a stop between two steps that somebody asked for.
"""

from __future__ import annotations

import contextlib
import operator
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

from deadpool.errors import Unwind
from deadpool.journal.entry import Sink
from deadpool.notes import note
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Declare, Durable, Finished, Missed, Paused, Release, Stepped
from deadpool.protocol.seal import Extent, Geometry
from deadpool.protocol.trainer_core import Capture
from deadpool.snapshot.copying import Boundary
from deadpool.snapshot.state import ProtectedState
from deadpool.trainer import boundary_stop, lost_peer, recovery, rehearsal
from deadpool.trainer.adapters import Adapter, versions
from deadpool.trainer.adapters.ddp import ddp_modules
from deadpool.trainer.adapters.kept_gradients import KeptGradients
from deadpool.trainer.adapters.wrappers import require_wrappers
from deadpool.trainer.budget import Budget
from deadpool.trainer.capture import Capturer
from deadpool.trainer.control_flow import Superseded
from deadpool.trainer.exhausted_generators import exhausted_generator
from deadpool.trainer.job_journal import FAILURE_S, JobJournal
from deadpool.trainer.loop_rules import LoopRules
from deadpool.trainer.session import Session
from deadpool.trainer.step import Step
from deadpool.trainer.step_log import StepLog
from deadpool.trainer.wait_meter import WaitMeter

SLOT_WAIT_S = 30.0
"""For new slots when the state has grown: once before the first step and once after it, as Adam's state appears."""


class Job:
    def __init__(self, session: Session, state: ProtectedState, adapters: list[Adapter], journal: JobJournal) -> None:
        """`journal` is a companion of `state`."""
        assert session.settings is not None
        self._journal = journal
        self.session, self.state, self.adapters = session, state, adapters
        self.in_place = versions.recovers_in_place(session.settings.in_place)
        self.enabled = True  # False on all ranks alike: versions are passed over, to measure what protection costs
        self.record = b""  # the boundary record of the version this rank stands at
        self.capturer = Capturer(
            state,
            session.pending_injections,
            allowance_s=self._allowance_s,
            on_observed=self._observed,
            on_copied=self._copied,
            on_given_up=self._given_up,
            on_error=self._device_failed,
        )
        self._device_error: Exception | None = None
        self.step_log = StepLog(session)
        self.waits = WaitMeter()
        self._dry = False
        self._rules = LoopRules()
        self._kept_gradients = KeptGradients(ddp_modules(state.modules))
        self._is_in_loop = False  # from its beginning to the end of its last step; for ever if it was left early
        self.cannot_redo: str | None = None  # why this process cannot redo the step that was cut off
        self._step_began = time.monotonic()
        self._block_s: float | None = None  # how long the step's block took; None: it has not come to its end
        self.budget = Budget(session.settings.overhead_budget)
        self._resumed_from: int | None = None
        self._pause: str | None = None
        if state.is_on_device:
            session.registrar.enable()
        for optimizer in state.optimizers:
            optimizer.register_step_pre_hook(self._before_optimizer)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def steps(self, count: int) -> Iterator[Step]:
        """Yields each step to be done, the same one again after a fault, until `count` are completed by every rank."""
        self._rules.begin_loop()
        return self._loop(count)

    def _loop(self, count: int) -> Iterator[Step]:
        if self.session.groups.detached:
            yield from rehearsal.run(self)
        else:
            self._begin()
        self._is_in_loop = True
        try:
            while not (self._done(count) and self._everybody_done()):
                if self.session.core.is_aborted:
                    recovery.come_back(self)
                elif not self._done(count) and not boundary_stop.stood(self):
                    yield from self._turn()
        except GeneratorExit:  # by a break or by an exception: which, only the end of the script will tell
            self._say_paused("left its loop")  # what it does now may take as long as it likes
            return
        self._is_in_loop = False

    def _turn(self) -> Iterator[Step]:
        """The step counts when the script asks for the next one. What it does after the block, if it breaks out of the
        loop there too, is part of the step: whoever has to come back to the version before does it all again."""
        self._step_began, self._block_s = time.monotonic(), None
        step = Step(self, self.number)
        yield step
        self._rules.check(step)
        self._kept_gradients.check()
        self.complete_step()

    def leave(self) -> None:
        """The script has ended well. If it left its loop early, it leaves the job together with the others."""
        if self._is_in_loop and not self._everybody_done():
            recovery.restart(self, "a fault came before every rank had ended its script")

    def fail(self) -> None:
        """The script has ended otherwise: what is final by now is still delivered."""
        self._journal.close(FAILURE_S)

    @property
    def number(self) -> int:
        """The step to be done next, which is the number of completed ones."""
        live = self.session.core.live
        assert live is not None
        return live.number

    @contextlib.contextmanager
    def pause(self, reason: str) -> Iterator[None]:
        """`with job.pause("evaluation"):` around what takes long on purpose, in a step or between two: an evaluation, a
        checkpoint. No step is expected of any rank while one of them is in it, so that it is not taken for a hang. A
        hang inside it is not found."""
        outer = self._pause
        self._say_paused(reason)
        try:
            yield
        finally:
            self._say_paused(outer)

    def _say_paused(self, reason: str | None) -> None:
        self._pause = reason
        self.session.send(Paused(reason=reason))

    def log(self, step: SupportsIndex, /, **values: Any) -> None:
        """Inside the block of `with step:`, as often as you like: small values, which are delivered once per step, in
        order and without gaps, whoever dies. A key that is logged again in a step gets the later value. A tensor of one
        element is waited for, as by .item(). They go where `log_to` says, else to the run folder: docs/journal.md."""
        self._journal.log(operator.index(step), values)

    def log_to(self, *sinks: Sink) -> None:
        """Before the loop: where this rank's values go (`deadpool.journal`). Without it they go to the run folder."""
        self._journal.log_to(sinks)

    def on_final(self, step: SupportsIndex, action: Callable[[], None]) -> None:
        """Runs `action` in this process once it is certain that `step` will never be computed again. It is lost if the
        process ends before that, which is told (`actions_lost`): what must not have gaps goes into `log`."""
        self._journal.on_final(operator.index(step), action)

    def durable(self, step: int, path: str | os.PathLike[str]) -> None:
        """Says that the script has saved a checkpoint of its own after `step` completed steps, complete and readable at
        `path`. One rank is enough. Should the job ever lose every copy of some rank, it names the newest one."""
        if not self._dry:
            self.session.send(Durable(step=int(step), path=os.fspath(path)))

    def digest(self) -> str:
        """Of the protected state as it is now: equal digests mean bit-identical state."""
        return self.state.digest()

    def _done(self, count: int) -> bool:
        return self.number >= count

    def _everybody_done(self) -> bool:
        """False: a fault came first, and some rank has to redo something."""
        self.capturer.finish()
        self.step_log.close()
        self.waits.close()
        session = self.session
        session.send(Finished(generation=session.core.generation, rank=session.rank))
        try:
            session.expect(Release, session.core.generation)
        except Superseded:
            return False
        self._journal.finish(self._count_last_step())
        return True

    def _count_last_step(self) -> int:
        """Of a loop that was left early, after the block: nobody has asked for the next step."""
        if self._block_s is None:
            return self.number
        self._journal.complete_step()
        return self.number + 1

    # --- the boundary of a step --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        require_wrappers(self.state.modules)  # some may have been made since protect()
        if self.session.rank == 0:
            self._warn_of_torch()
        with self.session.changed:
            self.session.core.begin()
        self._reached(self.state.mark())
        self._journal.begin()
        self.session.recording_schedule.enter_loop()
        self.record = self.state.record()
        self.take_snapshot()

    def enter_step(self, number: int) -> None:
        self.waits.begin_step()
        self.session.pending_injections.enter_step(number)
        self._journal.enter_step(number)
        self._kept_gradients.enter_step(number)

    def enter_dry_step(self, number: int) -> None:
        self._journal.enter_step(number)

    def leave_dry_step(self) -> None:
        self._journal.leave_step()

    def _warn_of_torch(self) -> None:
        """At the start of the job, so once."""
        assert self.session.settings is not None
        if text := versions.warning(self.session.settings.in_place):
            note(text)
            self.session.emit("unknown_torch", reason=text)

    def leave_step(self, error: BaseException | None) -> bool:
        """Whether the step counts is not known yet. True: the exception was the fault's doing, and the step will be
        yielded again."""
        self._journal.leave_step()
        self.waits.end_step()
        self.session.pending_injections.leave_step(completed=error is None)
        if error is None:
            self._block_s = time.monotonic() - self._step_began
            self.session.recording_schedule.block_ended()
            return True
        if isinstance(error, Exception):
            self.session.leave_if_device_broke()
        ours = isinstance(error, Unwind) or (
            isinstance(error, Exception) and lost_peer.was_caused_by_fault(self, error)
        )
        if not (ours and self.session.core.is_aborted):
            return False
        self.cannot_redo = exhausted_generator(error)
        return True

    def complete_step(self) -> None:
        """The step's work was enqueued; only then is the flag looked at (inside end_step). A step whose block was cut
        off does not count."""
        if self._block_s is None:
            return
        session, began, block_s = self.session, time.monotonic(), self._block_s
        self._block_s = None
        self._stay_close()
        self.capturer.settle()  # an optimizer may not have been stepped: the next boundary's clones would be too early
        boundary = self.state.mark()
        lost_peer.await_fence_if_peer_lost(self)
        with session.changed:
            counts = session.core.end_step()
        if not counts:
            return
        self._journal.complete_step()
        self._reached(boundary)
        step_s = block_s + time.monotonic() - began
        session.unwind_watch.stepped(step_s)
        self.step_log.completed(self.number - 1, step_s)
        self._tell_costs(step_s)
        session.recording_schedule.step_completed()
        if self._resumed_from is not None:
            session.emit("resumed", step=self._resumed_from)
            self._resumed_from = None
        if self.enabled:
            self.record = self.state.record()
            self.take_snapshot()
        else:
            self._pass_over()
        self._journal.settle(session.final_number)
        session.pending_injections.between(self.number - 1)

    def _stay_close(self) -> None:
        """At most one step ahead of the device: the version reached last must be seen before the next one is."""
        core = self.session.core
        with self.waits.waiting():
            self.session.wait(
                lambda: core.is_aborted or not core.is_far_ahead or self._device_error is not None or None
            )
        if self._device_error is not None:
            raise self._device_error

    def _reached(self, boundary: Boundary) -> None:
        live = self.session.core.live
        assert live is not None
        self.capturer.reached(live, boundary)

    def _tell_costs(self, step_s: float) -> None:
        """What captures cost is known when the device has come that far: of the last one, or the one before."""
        costs = list(self.capturer.costs())
        for cost in costs:
            self.budget.spend(cost.figures.cost_s, self.session.core.every)
        newest = next((cost for cost in reversed(costs) if not cost.given_up), None)
        self.budget.earn(step_s)
        self.session.send(
            Stepped(
                generation=self.session.core.generation,
                number=self.number,
                step_s=step_s,
                stall_s=sum(cost.figures.cost_s for cost in costs),
                captured=newest.number if newest else None,
                copy_s=newest.figures.copy_s if newest else None,
                waited_s=self.waits.take(),
            )
        )

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        """Starts the capture of the version just reached, and returns at once."""
        self.session.let_go_of_segments(self.state.release_slots)
        self._see_to_room()
        boundary_stop.await_slot(self)
        with self.session.changed:
            decision = self.session.core.plan_capture()
        match decision:
            case Capture(slot=ref):
                slot, geometry = self.session.slot(ref)
                self.capturer.begin(decision, slot, geometry, self.record)
            case Missed():
                self.session.send(decision)

    def _pass_over(self) -> None:
        """Without a boundary record the live state is nothing to come back to."""
        core = self.session.core
        with self.session.changed:
            core.restoring()
            missed = core.missed(core.live, "switched off") if core.live else None
        if missed is not None:
            self.session.send(missed)

    def _see_to_room(self) -> None:
        """Tells the agent when the state has outgrown its slots, and waits for others: that happens twice in a job."""
        session = self.session
        if _fits(self.state.extent(self.record), session.core.geometry):
            return
        needed = self.state.measure()
        self.capturer.finish()  # what is in flight is declared before its slot is given back
        with session.changed:
            session.core.declare(needed)
        session.send(Declare(geometry=needed, peers=self.state.peers))
        began = time.monotonic()
        session.wait(lambda: session.core.has_slots or session.core.is_aborted or None, timeout_s=SLOT_WAIT_S)
        session.emit(
            "slots_allocated",
            bytes=needed.slot_bytes,
            device_bytes=self.state.device_bytes,
            waited_s=time.monotonic() - began,
        )

    def _before_optimizer(self, *_: Any) -> None:
        """The last moment at which the state of the version is whole, and at which garbage can be kept out of it."""
        if self._dry:
            return
        self.capturer.settle()
        with self.session.changed:
            if self.session.core.is_aborted:
                raise Unwind
            self.session.core.optimizer_began()

    def _allowance_s(self) -> float | None:
        return self.budget.allowance_s(self.session.core.every)

    def _observed(self, version: Version) -> None:
        with self.session.changed:
            self.session.core.observed(version)
            self.session.changed.notify_all()

    def _device_failed(self, error: Exception) -> None:
        with self.session.changed:
            self._device_error = error
            self.session.changed.notify_all()

    def _copied(self, capture: Capture, record_bytes: int) -> None:
        with self.session.changed:
            captured = self.session.core.copied(capture, record_bytes)
        if captured is not None:
            self.session.send(captured)

    def _given_up(self, capture: Capture, reason: str, stall_s: float | None) -> None:
        self.session.leave_if_device_broke()
        with self.session.changed:
            missed = self.session.core.gave_up(capture, reason, stall_s)
        if missed is not None:
            self.session.send(missed)

    # --- for recovery and rehearsal ----------------------------------------------------------------------------------

    def resume(self, number: int) -> None:
        """Steps from here on are computed again."""
        self._journal.resume(number)
        self._resumed_from = number
        self.step_log.resumed()

    def set_dry(self, dry: bool) -> None:
        self._dry = dry
        self._journal.set_dry(dry)


def _fits(extent: Extent, room: Geometry | None) -> bool:
    if room is None:
        return False
    same_bulk = (extent.unique_bytes, extent.replica_bytes) == (room.unique_bytes, room.replica_bytes)
    return same_bulk and extent.record_bytes <= room.record_capacity
