"""The process itself: its life and death, the monitor that receives messages, and the link to its agent.

`epoch` counts the script's changes of place: an action that was scheduled in an earlier epoch does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deadpool.protocol.identity import Address
from deadpool.protocol.inputs import Activity
from deadpool.protocol.messages import (
    Arriving,
    Attach,
    AuditOver,
    Connect,
    End,
    Go,
    Grant,
    Halt,
    Proceed,
    Recording,
    Rehearse,
    Release,
    Reschedule,
    Restore,
    Seat,
    Stand,
    StepAudit,
    ToTrainerMessage,
    TrainerHello,
)
from deadpool.protocol.recovery_walk import RecoveryWalk
from deadpool.protocol.trainer_core import TrainerCore
from deadpool_lab.sim.checking.history import State
from deadpool_lab.sim.network import Link
from deadpool_lab.sim.process.audited_step import AuditedStep
from deadpool_lab.sim.process.captures import Captures, Recordings
from deadpool_lab.sim.process.seating import Seating
from deadpool_lab.sim.process.steps import Steps

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine


class Process:
    def __init__(self, machine: Machine, name: str, number: int) -> None:
        self.machine, self.world, self.name, self.number = machine, machine.world, name, number
        self.core = TrainerCore()
        self.walk = RecoveryWalk(self.core)
        self.alive, self.stage = True, "starting"
        self.epoch = 0
        self.state = State(0, 0, 0)
        self.courses: dict[int, int] = {}  # the data that the ranks which it carries have seen
        self.hung = False
        self.observed = Activity.ACTIVE  # what the agent was told of it last
        self.recordings = Recordings(self)
        self.captures = Captures(self)
        self.audited_step = AuditedStep(self)
        self.steps = Steps(self)
        self.seating = Seating(self)
        self._late_orders: list[Reschedule] = []
        self.inbox = Link(self.world, self._on_message)
        self._outbox = Link(self.world, self._deliver)

    # --- its life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.later(2.0, self._say_hello)

    def _say_hello(self) -> None:
        self.stage = "idle"
        self.say(TrainerHello(trainer=self.name, pid=self.number, store=self.address))

    @property
    def address(self) -> Address:
        return Address(host=self.machine.name, port=self.number)

    def die(self) -> None:
        """At once, at any point. What it was writing stays torn."""
        if not self.alive:
            return
        self.alive = False
        self.inbox.cut = True
        self.world.reductions.abandoned(self.number, self.core.rank)
        self.captures.cancel()

    def exit(self, code: int, reason: str) -> None:
        self.die()
        self.machine.process_exited(self, code, reason)

    @property
    def is_stepping(self) -> bool:
        return self.alive and self.stage == "running" and not (self.seating.is_unwinding or self.core.is_aborted)

    @property
    def activity(self) -> Activity:
        """Returns the activity as the kernel sees it."""
        return Activity.IDLE if self.hung else Activity.ACTIVE

    def hang(self) -> None:
        """The script stands still; monitor and capture go on."""
        self.hung = True
        self.epoch += 1

    # --- what its parts use ------------------------------------------------------------------------------------------

    def later(self, longest_s: float, action: Callable[[], None]) -> None:
        """Does something later, unless the epoch has changed by then."""
        epoch = self.epoch
        self.world.after(longest_s, lambda: action() if self.alive and self.epoch == epoch else None)

    def turn(self, stage: str) -> None:
        self.epoch += 1
        self.stage = stage

    def say(self, message: Any) -> None:
        self._outbox.send(message)

    def _deliver(self, message: Any) -> None:
        self.machine.hear_process(self, message)

    def states(self) -> dict[int, State]:
        """Returns the states by rank: its own, and those of the ranks that it carries, which hold the same tensors."""
        carried = {rank: replace(self.state, course=course) for rank, course in self.courses.items()}
        return {self.core.rank: self.state, **carried}

    def put_states(self, states: dict[int, State]) -> None:
        self.state = states[self.core.rank]
        self.courses = {rank: states[rank].course for rank in self.courses}

    def lose_state(self) -> None:
        """Makes its memory hold the state of no version."""
        bits = self.world.rng.getrandbits
        self.state = State(bits(60), bits(60), bits(60))
        self.courses = {rank: bits(60) for rank in self.courses}

    # --- the monitor -------------------------------------------------------------------------------------------------

    def _on_message(self, message: ToTrainerMessage) -> None:
        match message:
            case Rehearse():
                self.seating.rehearse(message)
            case Seat():
                self.seating.take_seat(message)
            case Recording():
                self.recordings.add(message)
                self.seating.begin_rehearsal()
            case Attach(segment=segment, geometry=geometry):
                self.core.attach(segment, geometry)
            case Grant(generation=generation, slot=slot, rank=carried):
                self.core.grant(generation, slot, carried)
                self.captures.on_slots()
            case Reschedule():
                self._late_orders.append(message)
                self.world.after(self.world.deaf_s, self.heed)
            case Stand(generation=generation, number=number):
                self.core.stand(generation, number)
                self.steps.on_stand_changed()
            case Proceed(generation=generation):
                self.core.proceed(generation)
                self.steps.on_stand_changed()
            case StepAudit() | AuditOver():
                self.audited_step.order = message if isinstance(message, StepAudit) else None
            case Halt(generation=generation):
                self.seating.halt(generation)
            case Arriving() | Restore() | Connect() | Go() | Release():
                self.walk.on_order(message)
                self.seating.go_on()
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
