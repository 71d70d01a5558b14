"""The script's way to its loop: from its first line, from a rehearsal, or from the rest that a halt brought it to.

Each action of the walk from rest to Go takes the time that it would take a trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Connect, Connected, Parked, Rehearse, Restore, Seat, SlotRef
from deadpool.protocol.recovery_walk import Abandon, Load, LoadEarly, RebuildGroups, Resume, WalkAction
from deadpool_lab.sim.arena import Arena, Content
from deadpool_lab.sim.checking.history import State

if TYPE_CHECKING:
    from deadpool_lab.sim.process.trainer_process import Process


class Seating:
    def __init__(self, process: Process) -> None:
        self._process, self._core, self._walk, self._world = process, process.core, process.walk, process.world
        self._recordings, self._steps = process.recordings, process.steps
        self.ordered_at = 0.0  # when it was told what to rehearse
        self.is_unwinding = False
        self._role: Seat | Rehearse | None = None
        self._built_as = -1
        self._begun_as: int | None = None  # the rank that the script runs as, since its first line

    # --- to rest -----------------------------------------------------------------------------------------------------

    def halt(self, generation: Generation) -> None:
        """The flag is raised first, then the groups are aborted. The script comes to rest later."""
        world = self._world
        self._core.halt(generation)
        world.reductions.abandoned(self._process.number, self._core.rank)
        if self._process.hung or self._process.stage == "loading":
            return  # it never comes back, or it checks the flag when the load is done
        if not self.is_unwinding:
            self.is_unwinding = True
            stuck = not world.calm and world.rng.random() < world.options.stuck
            world.after(1000.0 if stuck else 1.0, self._come_back)

    def _come_back(self) -> None:
        process = self._process
        if not process.alive or process.stage in ("loading", "leaving"):
            return  # out of its loop no process comes back: it ends by itself
        self.is_unwinding = False
        if not self._world.options.in_place:
            process.exit(75, "restarts")
            return
        self._steps.halt()
        halted = self._walk.rest()
        self._turn_as_walk()
        process.say(halted)
        self.go_on()

    # --- rehearsals --------------------------------------------------------------------------------------------------

    def rehearse(self, order: Rehearse) -> None:
        self._role, self.ordered_at = order, self._world.clock.now
        self.begin_rehearsal()

    def begin_rehearsal(self) -> None:
        """Begins to rehearse once the live rank has reached its loop: until then this process may become any rank."""
        if isinstance(self._role, Rehearse) and self._recordings.has(self._role.rank):
            self._build(self._role.rank)

    @property
    def awaits_recording(self) -> bool:
        return isinstance(self._role, Rehearse) and not self._recordings.has(self._role.rank)

    def _build(self, rank: int) -> None:
        """A process runs the script once, as one rank."""
        if self._begun_as is None:
            self._begin_as(rank)
            self._process.turn("building")
            self._process.later(3.0, lambda: self._built(rank))
        assert self._begun_as == rank, f"{self._history} and is told to be {rank}"

    def _begin_as(self, rank: int) -> None:
        assert self._begun_as is None, f"{self._history} and is to begin again as {rank}"
        self._begun_as = rank

    @property
    def _history(self) -> str:
        return f"{self._process.name} has begun as rank {self._begun_as}"

    def _built(self, rank: int) -> None:
        self._recordings.on_built(rank)
        self._built_as, self._process.stage = rank, "parked"
        if isinstance(self._role, Rehearse):
            self._process.say(Parked(rank=rank, geometry=self._process.captures.geometry(steps=1)))
        elif isinstance(self._role, Seat):
            self.take_seat(self._role)

    # --- to the seat -------------------------------------------------------------------------------------------------

    def take_seat(self, seat: Seat) -> None:
        self._role = seat
        self._walk.on_role(seat)
        if self._process.stage == "loading":
            return  # the script sees the newer seat when the load is done
        if seat.resume is None:
            assert self._begun_as is None, f"{self._history} and is to start over"
            self._core.take_seat(seat.generation, seat.rank, seat.schedule)
            self._process.turn("first_line")
            self.go_on()
        elif self._built_as != seat.rank:
            self._build(seat.rank)
        else:
            self._core.take_seat(seat.generation, seat.rank, seat.schedule)
            self._walk.begin(seat.generation)
            self._turn_as_walk()
            self.go_on()

    def go_on(self) -> None:
        """Goes on as far as the orders received so far allow."""
        process, generation = self._process, self._core.generation
        if process.stage == "first_line" and self._walk.order(Connect, generation) is not None:
            process.say(Connected(generation=generation, rank=self._core.rank))
            self._begin_as(self._core.rank)
            process.turn("building_for_real")
            process.later(3.0, self._steps.begin)
        elif process.stage == "finished":
            self._steps.leave_if_released()
        elif process.stage == self._walk.stage.value:
            self._carry_out(self._walk.advance())

    # --- the walk from rest to Go ------------------------------------------------------------------------------------

    def _turn_as_walk(self) -> None:
        """The walk has gone on, so that what was scheduled before counts no more."""
        self._process.turn(self._walk.stage.value)

    def _carry_out(self, action: WalkAction | None) -> None:
        match action:
            case LoadEarly():
                self._load_early()
            case Load(restore=restore):
                self._turn_as_walk()
                self._process.later(self._world.load_s, lambda: self._loaded(restore))
            case RebuildGroups():
                self._turn_as_walk()
                self._process.later(0.5, self._connected)
            case Resume(restore=restore):
                self._turn_as_walk()
                self._recordings.complete(restore.version.number)
                self._steps.resume(restore)
            case Abandon() | None:
                pass  # its unwinding, or its next seat, is on its way

    def _load_early(self) -> None:
        """The bytes are not verified: the state of this process is gone, and no other has taken its place yet."""
        self._core.restoring()
        self._process.lose_state()

    def _loaded(self, restore: Restore) -> None:
        arena = self._process.machine.arena
        slots = {self._core.rank: restore.slot, **dict(restore.carried)}
        given_away = any(slot is not None and not _is_in(arena, slot, restore.version) for slot in slots.values())
        if given_away and not self._is_superseded(restore):
            self._await_newer_seat(restore)
            return
        damaged = next((rank for rank, slot in slots.items() if slot in arena.damaged), None)
        if damaged is not None:
            self._found_damaged(restore, damaged)
        else:
            self._stand_at(restore)

    def _stand_at(self, restore: Restore, damaged: int | None = None) -> None:
        """`damaged` is for a mutation: the rank whose copy is not as it was sealed."""
        self._process.courses = dict.fromkeys((rank for rank, _ in restore.carried), 0)
        if restore.slot is not None:
            self._load(restore, restore.slot)
        self._carry(restore)
        prepared = self._walk.loaded(self._process.address)
        self._core.carry(rank for rank, _ in restore.carried)
        self._process.stage = self._walk.stage.value
        if prepared is None:
            self._leave_walk()
            return
        self._process.say(prepared)
        self.go_on()

    def _load(self, restore: Restore, slot: SlotRef) -> None:
        content = self._find(restore, slot)
        if content is not None:
            self._process.state = State(content.unique, content.replica or 0, content.course)
            self._core.declare(self._process.machine.arena.geometry[slot.segment])

    def _carry(self, restore: Restore) -> None:
        """Rule 30, carried ranks: their records come from their own copies, at the same version."""
        for rank, slot in restore.carried:
            content = self._find(restore, slot)
            if content is not None:
                self._process.courses[rank] = content.course

    def _find(self, restore: Restore, slot: SlotRef) -> Content | None:
        arena = self._process.machine.arena
        if not _is_in(arena, slot, restore.version):
            self._load_early()  # a newer plan has given the slot away while this process loaded
            return None
        content = arena.snapshot(slot)
        assert content is not None and content.replica is not None, f"{self._process.name} finds half of {restore}"
        return content

    def _await_newer_seat(self, restore: Restore) -> None:
        """A newcomer is not told of a fence, and its agent gives the slot away only under a newer plan: so the newer
        seat is on its way."""
        plan = self._process.machine.agent.plan
        is_on_its_way = plan is not None and plan.generation > restore.generation
        assert is_on_its_way, f"{self._process.name} restores {restore}: it is not there"
        self._process.later(0.1, lambda: self._loaded(restore))

    def _is_superseded(self, restore: Restore) -> bool:
        is_seated_anew = isinstance(self._role, Seat) and self._role.generation > restore.generation
        return self._core.is_aborted or is_seated_anew

    def _leave_walk(self) -> None:
        """A newer generation began during the load: a fence, or a newer seat of a newcomer."""
        if self._core.is_aborted:
            self._come_back()
        else:
            assert isinstance(self._role, Seat)
            self.take_seat(self._role)

    def _found_damaged(self, restore: Restore, rank: int) -> None:
        """What was loaded is not what was sealed, so it is not used."""
        self._process.say(structs.replace(self._walk.damaged(self._process.machine.name), rank=rank))
        self._process.stage = "await_restore"
        if self._walk.is_superseded(self._walk.generation):
            self._leave_walk()

    def _connected(self) -> None:
        connected = self._walk.connected()
        if connected is not None:
            self._process.stage = self._walk.stage.value
            self._process.say(connected)
            self.go_on()


def _is_in(arena: Arena, slot: SlotRef, version: Version) -> bool:
    content = arena.snapshot(slot)
    return content is not None and str(content.version) == str(version)
