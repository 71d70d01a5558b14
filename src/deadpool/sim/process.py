"""A trainer process: the real TrainerCore and RecoveryWalk, and around them a training loop in virtual time.

It does what trainer/ does with threads: a monitor that receives messages at any moment, a script that builds, steps and
carries out the walk from rest to Go, and a capture that runs beside the next step. `epoch` counts the script's changes
of place: an action that was scheduled in an earlier epoch does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deadpool.protocol.effects import Activity
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import (
    Arriving,
    Attach,
    Connect,
    Connected,
    Declare,
    End,
    Finished,
    Go,
    Grant,
    Halt,
    Missed,
    Parked,
    Proceed,
    Recording,
    Rehearse,
    Release,
    Reschedule,
    Restore,
    Seat,
    Stand,
    Standing,
    Stepped,
    TrainerHello,
)
from deadpool.protocol.recovery_walk import Abandon, Load, LoadEarly, Rebuild, RecoveryWalk, Resume, WalkAction
from deadpool.protocol.seal import Geometry
from deadpool.protocol.topology import Address
from deadpool.protocol.trainer_core import Capture, TrainerCore
from deadpool.sim.arena import Content, content_of
from deadpool.sim.history import State, Total, initial, stepped
from deadpool.sim.network import Link

if TYPE_CHECKING:
    from deadpool.sim.machine import Machine

RECORD_BYTES = 64
BOOK = b"an empty recording"
SLOT_WAIT_S = 3.0
STAND_SLOT_WAIT_S = 10.0


class Process:
    def __init__(self, machine: Machine, name: str, number: int) -> None:
        self.machine, self.world, self.name, self.number = machine, machine.world, name, number
        self.core = TrainerCore()
        self.walk = RecoveryWalk(self.core)
        self.alive, self.stage = True, "starting"
        self.epoch = 0
        self.state = State(0, 0, 0)
        self.role: Seat | Rehearse | None = None
        self.ordered_at = 0.0  # when it was told what to rehearse
        self.built_as = -1
        self.begun_as: int | None = None  # the rank that the script runs as, since its first line
        self.told: Generation | None = None  # the start whose recordings the script was built with
        self._recordings: dict[int, Recording] = {}
        self.unwinding = self.hung = False
        self.observed = Activity.ACTIVE  # what the agent was told of it last
        self.capture: tuple[Capture, Content] | None = None
        self._step_began, self._stall_s = 0.0, 0.0
        self._copy_s: float | None = None  # of the capture that was completed in this step
        self._late_orders: list[Reschedule] = []
        self._waits_for_slots: Callable[[], None] | None = None
        self._stands = False  # stopped between two steps by an order
        world = self.world
        self.inbox = Link(world, self._on_message)
        self._outbox = Link(world, self._deliver)

    # --- the process -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.later(2.0, self._say_hello)

    def _say_hello(self) -> None:
        self.stage = "idle"
        self.say(TrainerHello(trainer=self.name, pid=self.number, store=self._address))

    @property
    def _address(self) -> Address:
        return Address(host=self.machine.name, port=self.number)

    def die(self) -> None:
        """At once, at any point. What it was writing stays torn."""
        if not self.alive:
            return
        self.alive = False
        self.inbox.cut = True
        self.world.reductions.abandoned(self.number, self.core.rank)
        self._cancel_capture()

    def exit(self, code: int, reason: str) -> None:
        self.die()
        self.machine.process_exited(self, code, reason)

    @property
    def is_stepping(self) -> bool:
        return self.alive and self.stage == "running" and not (self.unwinding or self.core.is_aborted)

    @property
    def activity(self) -> Activity:
        """As the kernel sees it."""
        return Activity.IDLE if self.hung else Activity.ACTIVE

    def hang(self) -> None:
        """The script stands still; monitor and capture go on."""
        self.hung = True
        self.epoch += 1

    def later(self, longest_s: float, action: Callable[[], None]) -> None:
        """Unless the epoch has changed by then."""
        epoch = self.epoch
        self.world.after(longest_s, lambda: action() if self.alive and self.epoch == epoch else None)

    def say(self, message: Any) -> None:
        self._outbox.send(message)

    def _deliver(self, message: Any) -> None:
        self.machine.hear_process(self, message)

    def _turn(self, stage: str) -> None:
        self.epoch += 1
        self.stage = stage

    # --- the monitor -------------------------------------------------------------------------------------------------

    def _on_message(self, message: Any) -> None:
        match message:
            case Rehearse():
                self.role, self.ordered_at = message, self.world.clock.now
                self._begin_rehearsal()
            case Seat():
                self._take_seat(message)
            case Recording():
                self._on_recording(message)
            case Attach(segment=segment, geometry=geometry):
                self.core.attach(segment, geometry)
            case Grant(generation=generation, slot=slot):
                self.core.grant(generation, slot)
                self._on_slots()
            case Reschedule():
                self._late_orders.append(message)
                self.world.after(self.world.deaf_s, self.heed)
            case Stand(generation=generation, number=number):
                self.core.stand(generation, number)
                self._on_stand_changed()
            case Proceed(generation=generation):
                self.core.proceed(generation)
                self._on_stand_changed()
            case Halt(generation=generation):
                self._halted(generation)
            case Arriving() | Restore() | Connect() | Go() | Release():
                self.walk.on_order(message)
                self._go_on()
            case End():
                self.exit(0, "told to end")
            case _:
                pass

    def heed(self) -> None:
        """Changes of the interval that have arrived by now, perhaps too late."""
        orders, self._late_orders = self._late_orders, []
        for order in orders if self.alive else ():
            for missed in self.core.reschedule(order.generation, order.schedule):
                self.say(missed)

    def _halted(self, generation: Generation) -> None:
        """The flag is raised first, then the groups are aborted. The script comes to rest later."""
        self.core.halt(generation)
        self.world.reductions.abandoned(self.number, self.core.rank)
        if self.hung or self.stage == "loading":
            return  # it never comes back, or it checks the flag when the load is done
        if not self.unwinding:
            self.unwinding = True
            stuck = not self.world.calm and self.world.rng.random() < self.world.options.stuck
            self.world.after(1000.0 if stuck else 1.0, self._come_back)

    def _come_back(self) -> None:
        if not self.alive or self.stage == "loading":
            return
        self.unwinding = False
        if not self.world.options.in_place:
            self.exit(75, "restarts")
            return
        self._cancel_capture()
        halted = self.walk.rest()
        self._turn(self.walk.stage.value)
        self._waits_for_slots, self._stands = None, False
        self.say(halted)
        self._go_on()

    # --- the script: from its first line, or to its seat -------------------------------------------------------------

    def _begin_rehearsal(self) -> None:
        """Not before the live rank has reached its loop: until then this process may become any rank."""
        if isinstance(self.role, Rehearse) and self._has_recordings(self.role.rank):
            self._build(self.role.rank)

    @property
    def awaits_recording(self) -> bool:
        return isinstance(self.role, Rehearse) and not self._has_recordings(self.role.rank)

    def _has_recordings(self, rank: int) -> bool:
        return rank in self._recordings and not self._recordings[rank].is_void

    def _build(self, rank: int) -> None:
        """A process runs the script once, as one rank."""
        if self.begun_as is None:
            self._begin_as(rank)
            self._turn("building")
            self.later(3.0, lambda: self._built(rank))
        assert self.begun_as == rank, f"{self.name} has begun as rank {self.begun_as} and is told to be {rank}"

    def _begin_as(self, rank: int) -> None:
        assert self.begun_as is None, f"{self.name} has begun as rank {self.begun_as} and is to begin again as {rank}"
        self.begun_as = rank

    def _on_recording(self, recordings: Recording) -> None:
        """A rehearsal may have waited for it."""
        self._recordings[recordings.rank] = recordings
        self._begin_rehearsal()

    def _built(self, rank: int) -> None:
        if rank in self._recordings:
            self.told = self._recordings[rank].start
        self.built_as, self.stage = rank, "parked"
        if isinstance(self.role, Rehearse):
            self.say(Parked(rank=rank, geometry=self._geometry(steps=1)))
        elif isinstance(self.role, Seat):
            self._take_seat(self.role)

    def _take_seat(self, seat: Seat) -> None:
        self.role = seat
        self.walk.on_role(seat)
        if self.stage == "loading":
            return  # the script sees the newer seat when the load is done
        if seat.resume is None:
            assert self.begun_as is None, f"{self.name} has begun as rank {self.begun_as} and is to start over"
            self.core.take_seat(seat.generation, seat.rank, seat.schedule)
            self._turn("first_line")
            self._go_on()
        elif self.built_as != seat.rank:
            self._build(seat.rank)
        else:
            self.core.take_seat(seat.generation, seat.rank, seat.schedule)
            self.walk.begin(seat.generation)
            self._turn(self.walk.stage.value)
            self._go_on()

    def _go_on(self) -> None:
        """As far as the orders received so far allow."""
        generation = self.core.generation
        if self.stage == "first_line" and self.walk.order(Connect, generation) is not None:
            self.say(Connected(generation=generation, rank=self.core.rank))
            self._begin_as(self.core.rank)
            self._turn("building_for_real")
            self.later(3.0, self._begin)
        elif self.stage == "finished" and self.walk.order(Release, generation) is not None:
            self._turn("leaving")
            self.world.checkers.final_state(self.core.rank, self.core.live, self.state)
            self.later(0.5, lambda: self.exit(0, "done"))
        elif self.stage == self.walk.stage.value:
            self._carry_out(self.walk.advance())

    def _carry_out(self, action: WalkAction | None) -> None:
        """Each action of the walk takes the time that it would take a trainer."""
        match action:
            case LoadEarly():
                self._load_early()
            case Load(restore=restore):
                self._turn(self.walk.stage.value)
                self.later(self.world.load_s, lambda: self._loaded(restore))
            case Rebuild():
                self._turn(self.walk.stage.value)
                self.later(0.5, self._connected)
            case Resume(restore=restore):
                self._turn(self.walk.stage.value)
                self._complete_recordings(restore.version.number)
                self._resume(restore)
            case Abandon() | None:
                pass  # its unwinding, or its next seat, is on its way

    def _load_early(self) -> None:
        """The bytes are not verified: the state of this process is gone, and no other has taken its place yet."""
        self.core.restoring()
        self.state = self._garbage()

    def _garbage(self) -> State:
        bits = self.world.rng.getrandbits
        return State(bits(60), bits(60), bits(60))

    def _loaded(self, restore: Restore) -> None:
        if restore.slot is not None and restore.slot in self.machine.arena.corrupted:
            self._found_spoilt(restore)
        else:
            self._stand_at(restore)

    def _stand_at(self, restore: Restore) -> None:
        if restore.slot is not None:
            content = self.machine.arena.contents.get(restore.slot)
            gone = content is None or str(content.version) != str(restore.version)
            assert not gone or self._is_superseded(restore), f"{self.name} restores {restore}: it is not there"
            if content is None or gone:
                self._load_early()  # a newer plan has given the slot away while this process loaded
            else:
                assert content.replica is not None, f"{self.name} restores {restore.version} without its replica region"
                self.state = State(content.unique, content.replica, content.course)
                self.core.declare(self.machine.arena.geometry[restore.slot.segment])
        prepared = self.walk.loaded(self._address)
        self.stage = self.walk.stage.value
        if prepared is None:
            self._leave_walk()
            return
        self.say(prepared)
        self._go_on()

    def _is_superseded(self, restore: Restore) -> bool:
        is_seated_anew = isinstance(self.role, Seat) and self.role.generation > restore.generation
        return self.core.is_aborted or is_seated_anew

    def _leave_walk(self) -> None:
        """A newer generation began during the load: a fence, or a newer seat of a newcomer."""
        if self.core.is_aborted:
            self._come_back()
        else:
            assert isinstance(self.role, Seat)
            self._take_seat(self.role)

    def _found_spoilt(self, restore: Restore) -> None:
        """What was loaded is not what was sealed, so it is not used."""
        self.say(self.walk.spoilt(self.machine.name))
        self.stage = "await_restore"
        if self.walk.is_superseded(self.walk.generation):
            self._leave_walk()

    def _connected(self) -> None:
        connected = self.walk.connected()
        if connected is not None:
            self.stage = self.walk.stage.value
            self.say(connected)
            self._go_on()

    def _resume(self, restore: Restore) -> None:
        self.world.checkers.stands_at(self.core.rank, restore.version, self.state)
        self.world.checkers.runs(self)
        if restore.capture:
            self._await_slots(0.5, lambda: self._snapshot(self._next_step))
        else:
            self._next_step()

    # --- the script: steps -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.stage = "running"
        self.core.begin()
        self._observe()
        self.told = self.core.generation
        self._say_recordings(complete=False)
        self.state = initial(self.core.generation, self.core.rank)
        self.world.checkers.runs(self)
        self._snapshot(self._next_step)

    def _next_step(self) -> None:
        live = self.core.live
        if self.core.is_aborted or live is None:
            return  # its unwinding has begun
        if live.number >= self.world.last_step:
            self._turn("finished")
            self.say(Finished(generation=self.core.generation, rank=self.core.rank))
            self._go_on()
            return
        if self.core.must_stand:
            self._stand()
            return
        self._step_began, self._stall_s, self._copy_s = self.world.clock.now, 0.0, None
        self.later(0.8, self._reduce)

    def _stand(self) -> None:
        """Captures are reported first."""
        if self.capture is not None:
            self.later(0.2, self._next_step)
            return
        assert self.core.live is not None
        self._stands = True
        self.say(Standing(generation=self.core.generation, rank=self.core.rank, number=self.core.live.number))

    def _on_stand_changed(self) -> None:
        """The order to stand has changed: another version, or none."""
        if self._stands and not self.hung and not self.core.must_stand:
            self._stands = False
            self._next_step()

    def _reduce(self) -> None:
        if self.core.is_aborted or self.core.live is None:
            return
        epoch, key = self.epoch, (self.core.generation, self.core.live.number)

        def completion(total: Total, garbage: bool) -> None:
            if self.alive and self.epoch == epoch:
                self.world.reductions.left(self.number)
                self._before_optimizer(total, garbage)

        self.world.reductions.join(self, key, completion)

    def _before_optimizer(self, total: Total, garbage: bool) -> None:
        """The capture of this version has to end, or is given up, before its state is overwritten."""
        if self.capture is not None and self.world.rng.random() < self.world.give_up:
            capture = self.capture[0]
            self._cancel_capture()
            self._say_missed(self.core.gave_up(capture, "not done when the optimizer began", self.world.copy_s))
        if self.capture is not None:
            self._stall_s += 0.1
            self.later(0.2, lambda: self._before_optimizer(total, garbage))
        elif not self.core.is_aborted:
            self.core.optimizer_began()
            self.later(0.1, lambda: self._end_step(total, garbage))

    def _end_step(self, total: Total, garbage: bool) -> None:
        counts = self.core.end_step()
        if not counts or garbage:
            self.state = self._garbage()
        if not counts:
            return
        self._observe()
        live = self.core.live
        assert live is not None
        if not garbage:
            self.state = stepped(self.state, total, live, self.core.rank)
        self.world.stepped(live)
        self._say_stepped(live.number)
        if live.number == 1:
            self._say_recordings(complete=True)
        self._snapshot(self._next_step)

    def _observe(self) -> None:
        """There is no device here that a host could run ahead of."""
        assert self.core.live is not None
        self.core.observed(self.core.live)

    def _say_stepped(self, number: int) -> None:
        step_s = self.world.clock.now - self._step_began
        generation, stall_s, copy_s = self.core.generation, self._stall_s, self._copy_s
        self.say(Stepped(generation=generation, number=number, step_s=step_s, stall_s=stall_s, copy_s=copy_s))

    def _say_recordings(self, *, complete: bool) -> None:
        if self.told is not None:
            self.say(Recording(rank=self.core.rank, start=self.told, complete=complete, book=BOOK))

    def _complete_recordings(self, step: int) -> None:
        """A newcomer completes them where no other process is left that could add to them."""
        recordings = self._recordings.get(self.core.rank)
        if self.told is None or (step > 0 and recordings is not None and not recordings.complete):
            self.told = self.told or self.core.generation
            self._say_recordings(complete=True)
            self._recordings[self.core.rank] = Recording(rank=self.core.rank, start=self.told, complete=True, book=BOOK)

    # --- captures ----------------------------------------------------------------------------------------------------

    def _geometry(self, steps: int | None = None) -> Geometry:
        """It is small before the first step, then grows by the optimizer's state."""
        if steps is None:
            assert self.core.live is not None
            steps = self.core.live.number
        unique = 100 if steps == 0 else 300
        return Geometry(record_capacity=RECORD_BYTES, unique_bytes=unique, replica_bytes=self.world.replica_bytes)

    def _snapshot(self, then: Callable[[], None]) -> None:
        if self.core.declare(self._geometry()):
            self.say(Declare(geometry=self._geometry(), peers=self.world.peers_of(self.core.rank)))
            self._await_slots(SLOT_WAIT_S, lambda: self._take_snapshot(then))
        else:
            self._take_snapshot(then)

    def _await_slots(self, patience_s: float, then: Callable[[], None]) -> None:
        if self.core.has_slots:
            then()
            return
        epoch = self.epoch

        def go_on() -> None:
            if self._waits_for_slots is go_on and self.alive and self.epoch == epoch:
                self._waits_for_slots = None
                then()

        self._waits_for_slots = go_on
        self.world.clock.after(patience_s, go_on)

    def _on_slots(self) -> None:
        if self._waits_for_slots is not None and self.core.has_slots:
            self._waits_for_slots()

    def _take_snapshot(self, then: Callable[[], None]) -> None:
        if self.core.captures_to_stand and not self.core.has_slots:
            self._await_slots(STAND_SLOT_WAIT_S, lambda: self._plan_capture(then))
        else:
            self._plan_capture(then)

    def _plan_capture(self, then: Callable[[], None]) -> None:
        match self.core.plan_capture():
            case Capture() as capture:
                self._begin_capture(capture)
            case Missed() as missed:
                self.say(missed)
        then()

    def _begin_capture(self, capture: Capture) -> None:
        assert self.machine.arena.geometry[capture.slot.segment] == self._geometry(), "a slot of another geometry"
        self.capture = (capture, content_of(self.core.rank, capture.version, self.state))
        self.machine.arena.begin_write(capture.slot, self)
        self.world.after(self.world.copy_s, lambda: self._copied(capture))

    def _copied(self, capture: Capture) -> None:
        if self.capture is None or self.capture[0] is not capture:
            return
        content, self.capture = self.capture[1], None
        self._copy_s = self.world.copy_s
        self.machine.arena.end_write(capture.slot, self, content)
        captured = self.core.copied(capture, RECORD_BYTES)
        if captured is not None:
            self.say(captured)

    def _cancel_capture(self) -> None:
        if self.capture is not None:
            self.machine.arena.end_write(self.capture[0].slot, self, None)
            self.capture = None

    def _say_missed(self, missed: Missed | None) -> None:
        if missed is not None:
            self.say(missed)
