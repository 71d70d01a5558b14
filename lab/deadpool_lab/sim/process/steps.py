"""The training loop: a step, its collective, the optimizer, and the places between two steps where the script stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.causes import Miss
from deadpool.protocol.messages import Finished, Release, Restore, Standing, Stepped, UsesShares
from deadpool_lab.sim.checking.history import Total
from deadpool_lab.sim.process.audited_step import FENCE_S

if TYPE_CHECKING:
    from deadpool_lab.sim.process.trainer_process import Process


class Steps:
    def __init__(self, process: Process) -> None:
        self._process, self._core, self._world = process, process.core, process.world
        self._captures, self._recordings = process.captures, process.recordings
        self._audited = process.audited_step
        self._began_at, self._stall_s = 0.0, 0.0  # of the step in progress
        self._stands = False  # stopped between two steps by an order
        self._said_shares = False

    # --- into the loop -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins at the script's first line."""
        self._process.stage = "running"
        self._core.begin()
        self._observe()
        self._recordings.on_loop_begun()
        rank = self._core.rank
        self._process.state = self._world.history.initial(self._core.generation, rank)
        self._world.checkers.runs(self._process)
        self._captures.snapshot(self._next_step)

    def resume(self, restore: Restore) -> None:
        """At the version that was restored, or kept."""
        for rank, state in self._process.states().items():
            self._world.checkers.stands_at(rank, restore.version, state)
        self._world.checkers.runs(self._process)
        self._say_shares()  # a newcomer has rehearsed with them
        self._audited.resumed(restore.version.number)
        if restore.capture:
            self._captures.await_slots(0.5, lambda: self._captures.snapshot(self._next_step))
        else:
            self._next_step()

    # --- between two steps -------------------------------------------------------------------------------------------

    def _next_step(self) -> None:
        live = self._core.live
        if self._core.is_aborted or live is None:
            return  # its unwinding has begun
        if live.number >= self._world.last_step:
            self._finish()
        elif self._core.must_stand:
            self._stand()
        else:
            self._began_at, self._stall_s, self._captures.copy_s = self._world.clock.now, 0.0, None
            self._process.later(0.8 * (1 + len(self._process.courses)), self._reduce)

    def _stand(self) -> None:
        """Captures are reported first."""
        self._captures.end_waiting()
        if self._captures.is_running:
            self._process.later(0.2, self._next_step)
            return
        assert self._core.live is not None
        self._stands = True
        number = self._core.live.number
        self._process.say(Standing(generation=self._core.generation, rank=self._core.rank, number=number))

    def on_stand_changed(self) -> None:
        """The order to stand has changed: another version, or none."""
        if self._stands and not self._process.hung and not self._core.must_stand:
            self._stands = False
            self._next_step()

    def halt(self) -> None:
        """The script unwinds."""
        self._captures.halt()
        self._stands = False

    # --- one step ----------------------------------------------------------------------------------------------------

    def _reduce(self) -> None:
        if self._core.is_aborted or self._core.live is None:
            return
        process, key = self._process, (self._core.generation, self._core.live.number)
        epoch = process.epoch

        def completion(total: Total, garbage: bool) -> None:
            if process.alive and process.epoch == epoch:
                self._world.reductions.left(process.number)
                self._before_optimizer(self._audited.received(total), garbage)

        given = {rank: self._audited.contribution(state) for rank, state in process.states().items()}
        self._world.reductions.join(process, key, given, completion)

    def _before_optimizer(self, total: Total, garbage: bool) -> None:
        """The capture of this version has to end, or is given up, before its state is overwritten."""
        self._captures.end_waiting()
        if self._captures.is_running and self._world.rng.random() < self._world.give_up:
            self._captures.give_up(Miss.TOO_SLOW, "not done when the optimizer began")
        if self._captures.is_running:
            self._stall_s += 0.1
            self._process.later(0.2, lambda: self._before_optimizer(total, garbage))
        elif not self._core.is_aborted:
            self._core.optimizer_began()
            self._process.later(0.1, lambda: self._end_step(total, garbage))

    def _end_step(self, total: Total, garbage: bool) -> None:
        counts = self._core.end_step()
        if not counts or garbage:
            self._process.lose_state()
        if not counts:
            return
        self._observe()
        live = self._core.live
        assert live is not None
        if not garbage:
            before, history = self._process.states().items(), self._world.history
            self._process.put_states({rank: history.stepped(state, total, live, rank) for rank, state in before})
            self._process.state = self._process.machine.device.errs_in(self._process.state)
            self._process.state = self._audited.updated(self._process.state)
        for _ in self._process.states():
            self._world.stepped(live)
        self._say_stepped(live.number)
        self._say_shares()
        if live.number == 1:
            self._recordings.say(complete=True)
        if self._audited.at_boundary():
            self._audited.miss()
            self._process.later(FENCE_S, self._next_step)
        else:
            self._captures.snapshot(self._next_step)

    def _say_shares(self) -> None:
        """Once, since nothing changes it."""
        if self._world.may_shrink and not self._said_shares:
            self._said_shares = True
            self._process.say(UsesShares(shares=self._world.shares_of(self._core.rank)))

    def _observe(self) -> None:
        """There is no device here that a host could run ahead of."""
        assert self._core.live is not None
        self._core.observed(self._core.live)

    def _say_stepped(self, number: int) -> None:
        step_s = self._world.clock.now - self._began_at
        generation, stall_s, copy_s = self._core.generation, self._stall_s, self._captures.copy_s
        self._process.say(Stepped(generation=generation, number=number, step_s=step_s, stall_s=stall_s, copy_s=copy_s))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._captures.end_waiting()
        self._process.turn("finished")
        self._process.say(Finished(generation=self._core.generation, rank=self._core.rank))
        self.leave_if_released()

    def leave_if_released(self) -> None:
        """The last step is done; it may have to be done again until every rank's is."""
        if self._process.walk.order(Release, self._core.generation) is not None:
            self._process.turn("leaving")
            for rank, state in self._process.states().items():
                self._world.checkers.final_state(rank, self._core.live, state)
                self._world.checkers.on_left(rank, self._core.generation)
            self._process.later(self._world.options.end_s, lambda: self._process.exit(0, "done"))
