"""Snapshots of the process, and recordings for newcomers.

`Captures`: Snapshots of the process: the slots that they wait for, and the one capture that runs beside the next
step.

`Recordings`: what collectives gave ranks before their loops: recordings that this process was sent, and those that
it makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Declare, Recording, SlotRef
from deadpool.protocol.seal import Geometry
from deadpool.protocol.trainer_core import Capture, SlotAwaited
from deadpool_lab.sim.arena import Content, content_of

if TYPE_CHECKING:
    from deadpool_lab.sim.process.trainer_process import Process
    from deadpool_lab.sim.world import World


RECORD_BYTES = 64
SLOT_WAIT_S = 3.0
STAND_SLOT_WAIT_S = 10.0


def full_geometry(world: World) -> Geometry:
    """Returns the geometry of a rank's snapshots from the first step on."""
    return Geometry(record_capacity=RECORD_BYTES, unique_bytes=300, replica_bytes=world.replica_bytes)


class Captures:
    def __init__(self, process: Process) -> None:
        self._process, self._core, self._world = process, process.core, process.world
        self.copy_s: float | None = None  # of the capture that was completed in this step
        self._running: tuple[Capture, dict[SlotRef, Content]] | None = None
        self._waits_for_slots: Callable[[], None] | None = None
        self._awaited: SlotAwaited | None = None  # the version whose capture begins when a slot is granted

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def geometry(self, steps: int | None = None) -> Geometry:
        """Returns a geometry that is small before the first step, then grows by the optimizer's state."""
        if steps is None:
            assert self._core.live is not None
            steps = self._core.live.number
        grows = 100 if steps == 0 else 300
        if self._world.may_shrink:  # no rank has anything that no other has
            return Geometry(record_capacity=RECORD_BYTES, unique_bytes=0, replica_bytes=grows)
        return replace(full_geometry(self._world), unique_bytes=grows)

    def snapshot(self, then: Callable[[], None]) -> None:
        if self._core.declare(self.geometry()):
            self._process.say(Declare(geometry=self.geometry(), peers=self._world.peers_of(self._core.rank)))
            self.await_slots(SLOT_WAIT_S, lambda: self._take_snapshot(then))
        else:
            self._take_snapshot(then)

    # --- slots -------------------------------------------------------------------------------------------------------

    def await_slots(self, patience_s: float, then: Callable[[], None]) -> None:
        if self._core.has_slots:
            then()
            return
        epoch = self._process.epoch

        def go_on() -> None:
            if self._waits_for_slots is go_on and self._process.alive and self._process.epoch == epoch:
                self._waits_for_slots = None
                then()

        self._waits_for_slots = go_on
        self._world.clock.after(patience_s, go_on)

    def on_slots(self) -> None:
        if self._waits_for_slots is not None and self._core.has_slots:
            self._waits_for_slots()
        elif self._awaited is not None and (capture := self._core.capture_late(self._awaited)) is not None:
            self._awaited = None
            self._begin(capture)

    # --- one capture -------------------------------------------------------------------------------------------------

    def _take_snapshot(self, then: Callable[[], None]) -> None:
        if self._core.captures_to_stand and not self._core.has_slots:
            self.await_slots(STAND_SLOT_WAIT_S, lambda: self._plan_capture(then))
        else:
            self._plan_capture(then)

    def _plan_capture(self, then: Callable[[], None]) -> None:
        match self._core.plan_capture():
            case Capture() as capture:
                self._begin(capture)
            case SlotAwaited() as awaited:
                self._awaited = awaited
        then()

    def end_waiting(self) -> None:
        """The state is about to change: a version that still has no slot is missed."""
        awaited, self._awaited = self._awaited, None
        missed = self._core.slot_never_came(awaited) if awaited is not None else None
        if missed is not None:
            self._process.say(missed)

    def _begin(self, capture: Capture) -> None:
        arena, states = self._process.machine.arena, self._process.states()
        slots = {self._core.rank: capture.slot, **dict(capture.carried)}
        assert slots.keys() == states.keys(), f"{self._process.name} captures {slots}, and its ranks are {states}"
        self._running = (capture, {slot: content_of(r, capture.version, states[r]) for r, slot in slots.items()})
        for slot in slots.values():
            assert arena.geometry[slot.segment] == self.geometry(), "a slot of another geometry"
            arena.begin_write(slot, self._process)
        self._world.after(self._world.copy_s, lambda: self._copied(capture))

    def _copied(self, capture: Capture) -> None:
        if self._running is None or self._running[0] is not capture:
            return
        contents, self._running = self._running[1], None
        self.copy_s = self._world.copy_s
        for slot, content in contents.items():
            self._process.machine.arena.end_write(slot, self._process, content)
        captured = self._core.copied(capture, RECORD_BYTES)
        others = self._core.copied_carried(capture, {rank: RECORD_BYTES for rank, _ in capture.carried})
        for each in (*others, captured) if captured is not None else ():
            self._process.say(each)

    def give_up(self, cause: Miss, reason: str) -> None:
        """The one that runs."""
        assert self._running is not None
        capture = self._running[0]
        self.cancel()
        missed = self._core.gave_up(capture, cause, reason, self._world.copy_s)
        if missed is not None:
            self._process.say(missed)

    def cancel(self) -> None:
        """Cancels the capture, whose slot stays torn."""
        if self._running is not None:
            for slot in self._running[1]:
                self._process.machine.arena.end_write(slot, self._process, None)
            self._running = None

    def halt(self) -> None:
        """The script unwinds: it captures nothing, and waits for no slot."""
        self.cancel()
        self._waits_for_slots, self._awaited = None, None


BOOK = b"an empty recording"


class Recordings:
    def __init__(self, process: Process) -> None:
        self._process = process
        self.told: Generation | None = None  # the start whose recordings the script was built with
        self._received: dict[int, Recording] = {}  # by rank

    def add(self, recording: Recording) -> None:
        self._received[recording.rank] = recording

    def has(self, rank: int) -> bool:
        return rank in self._received and not self._received[rank].is_void

    def on_built(self, rank: int) -> None:
        """The script was built as this rank, with what had been received for it."""
        if rank in self._received:
            self.told = self._received[rank].start

    def on_loop_begun(self) -> None:
        """The script has come to its loop from its first line, under real groups."""
        self.told = self._process.core.generation
        self.say(complete=False)

    def say(self, *, complete: bool) -> None:
        if self.told is not None:
            self._process.say(self._recording(self.told, complete=complete))

    def complete(self, step: int) -> None:
        """A newcomer completes them where no other process is left that could add to them."""
        core = self._process.core
        received = self._received.get(core.rank)
        if self.told is None or (step > 0 and received is not None and not received.complete):
            self.told = self.told or core.generation
            self.say(complete=True)
            self._received[core.rank] = self._recording(self.told, complete=True)

    def _recording(self, start: Generation, *, complete: bool) -> Recording:
        return Recording(rank=self._process.core.rank, start=start, complete=complete, book=BOOK)
