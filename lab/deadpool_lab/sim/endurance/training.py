"""How far the job is, between what the core decides: steps done, versions complete, time that was lost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deadpool.protocol.causes import Checkpoint
from deadpool.protocol.identity import Version
from deadpool.protocol.inputs import CheckpointFound
from deadpool.protocol.messages import Sealed
from deadpool_lab.sim.endurance.light_node import copy_of

if TYPE_CHECKING:
    from deadpool_lab.sim.endurance.long_run import LongRun

CHECKPOINT_RETRY_S = 60.0


class Training:
    def __init__(self, run: LongRun) -> None:
        self._run, setup = run, run.setup
        self._step_s = setup.step_s * (1.0 + setup.overhead)
        self.is_running = False
        self._began = 0.0  # when it last went
        self._base = 0  # the step that it went from
        self._stopped: tuple[float, int] | None = None  # when it stood still, and where
        self._stopped_at: float | None = None  # when the time that is being lost began
        self._waits_since: float | None = None
        self._committed = 0  # steps
        self._checkpoint: tuple[int, float] | None = None  # the newest one: its step, and when it is complete
        self._pending: tuple[int, float] | None = None  # the one that is being written, and when it will be complete
        self._told_checkpoint = 0
        self._durable_due = setup.durable_every_s
        self._names = 0

    # --- while it runs ------------------------------------------------------------------------------------------------

    def reached(self) -> int:
        """Completed steps."""
        if not self.is_running:
            return self._base
        if self._stopped is not None:
            return self._stopped[1]
        return self._base + math.floor((self._run.clock.now - self._began) / self._step_s)

    def _complete_at(self, at: float) -> int:
        """The newest version that every holder has stored by then; not above the step that it went from: none yet."""
        every = self._run.setup.capture_every
        done = self._base + math.floor((at - self._began - self._run.setup.durations.commit_lag_s) / self._step_s)
        return done // every * every

    def commit(self) -> None:
        """The core is told of the newest version that is complete by now, by every rank and every holder."""
        at = self._stopped[0] if self._stopped is not None else self._run.clock.now
        self._note_checkpoints(at)
        number = self._complete_at(at)
        if self.is_running and number > max(self._base, self._committed):
            self._committed = number
            self._commit(Version(self._run.core.coordinator.generation, number))
        self._tell_checkpoint()

    def _commit(self, version: Version) -> None:
        run = self._run
        for node in list(run.nodes.values()):
            held = node.commit(version)
            for rank in node.ranks:
                run.say(node, Sealed(generation=version.generation, copy=copy_of(rank, version)))
            for said in held:
                run.say(node, said)

    # --- durable checkpoints ------------------------------------------------------------------------------------------

    def _note_checkpoints(self, until: float) -> None:
        """Notes the checkpoints that were due since the last look."""
        setup = self._run.setup
        while setup.durable_every_s and self.is_running and self._durable_due <= until:
            begun = max(self._durable_due, self._began)
            number = max(self._committed, self._complete_at(begun))
            self._end_write(begun)
            self._pending = (number, begun + setup.durations.durable_write_s)
            self._durable_due = begun + max(setup.durable_every_s, setup.durations.durable_write_s)
        self._end_write(until)

    def _end_write(self, at: float) -> None:
        if self._pending is not None and self._pending[1] <= at:
            self._checkpoint, self._pending = self._pending, None

    def _tell_checkpoint(self) -> None:
        if self._checkpoint is not None and self._checkpoint[0] > self._told_checkpoint:
            number = self._told_checkpoint = self._checkpoint[0]
            self._names += 1
            run, version = self._run, Version(self._run.core.coordinator.generation, number)
            copies = tuple(copy_of(rank, version) for rank in range(run.layout.world_size))
            run.tell(CheckpointFound(checkpoint=Checkpoint(name=f"c{self._names}", number=number, copies=copies)))

    # --- it stops, and goes on ----------------------------------------------------------------------------------------

    def stand_still(self, *, node_lost: bool) -> None:
        """A rank is gone: the others wait for it in their next collective."""
        if not self.is_running or self._stopped is not None:
            if node_lost:
                self._fail_write()
            return
        now = self._run.clock.now
        self._stopped, self._stopped_at = (now, self.reached()), now
        self.commit()
        if node_lost:
            self._fail_write()
        self._rest(Version(self._run.core.coordinator.generation, self._stopped[1]))

    def _fail_write(self) -> None:
        """A checkpoint that a node was to write its part of is begun again."""
        if self._pending is not None:
            self._pending = None
            self._durable_due = self._run.clock.now + CHECKPOINT_RETRY_S

    def _rest(self, version: Version) -> None:
        for node in self._run.nodes.values():
            if node.ranks and node.went == version.generation:
                node.live = version

    def stand_at(self, number: int) -> float:
        """Returns when every rank comes to this version, at which a drain lets it stand."""
        return self._began + (number - self._base) * self._step_s

    def stopped_for_drain(self, number: int) -> None:
        now = self._run.clock.now
        if self._stopped is None:
            self._stopped, self._stopped_at = (now, number), now
            self._rest(Version(self._run.core.coordinator.generation, number))

    def proceed(self) -> None:
        """The drain was given up, and no rank is lost."""
        if self._stopped is not None and self._stopped_at is not None:
            self._count_lost()
            self._base, self._began, self._stopped = self._stopped[1], self._run.clock.now, None

    def stop(self) -> None:
        """A fence. Where nothing stood still before, it begins here."""
        if self.is_running and self._stopped is None:
            self.stand_still(node_lost=False)
        self.is_running = False
        self._stopped = None
        if self._waits_since is not None:
            self._end_wait()

    def wait(self) -> None:
        if self._waits_since is None:
            self._waits_since = self._run.clock.now

    def _end_wait(self) -> None:
        now = self._run.clock.now
        if self._waits_since is not None:
            self._run.lived.waiting_s += now - self._waits_since
            self._stopped_at = (self._stopped_at or now) + now - self._waits_since
            self._waits_since = None

    def plan(self, step: int, detail: dict[str, Any]) -> None:
        lived = self._run.lived
        self._end_wait()
        self._base = self._committed = step
        lived.redone_steps += detail["lost_steps"]
        lived.from_checkpoint += detail["checkpoint"] is not None
        if detail["checkpoint"] is not None:
            self._told_checkpoint = min(self._told_checkpoint, step)

    def go(self) -> None:
        self._count_lost()
        self._run.lived.recoveries += 1
        self.is_running, self._began, self._stopped = True, self._run.clock.now, None

    def _count_lost(self) -> None:
        if self._stopped_at is not None:
            self._run.lived.stopped_s += self._run.clock.now - self._stopped_at
            self._stopped_at = None

    def end(self, now: float) -> None:
        lived = self._run.lived
        if self._waits_since is not None:
            self._end_wait()
        if self.is_running and self._stopped is None:
            done = self._base + (now - self._began) / self._step_s
        else:
            done = float(self._stopped[1] if self._stopped is not None else self._base)
        lived.seconds = now
        lived.useful_s = done * self._run.setup.step_s
