"""A machine: the real agent core, its processes, its memory, its link to the coordinator. It dies all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deadpool.protocol.agent import Agent
from deadpool.protocol.effects import (
    AcceptOffer,
    AgentEffect,
    Allocate,
    Allocated,
    AllocationFailed,
    CutStreams,
    Emit,
    FetchCopy,
    Finish,
    FromCoordinator,
    FromTrainer,
    Hashed,
    HashSlot,
    KillTrainer,
    PushCopy,
    RefuseOffer,
    ReleaseSegment,
    StartTrainer,
    Tick,
    ToCoordinator,
    ToTrainer,
    TrainerExited,
    WriteSeal,
)
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.messages import Join, Permit, Plan
from deadpool.protocol.topology import Address
from deadpool.sim.arena import Arena
from deadpool.sim.clock import Link
from deadpool.sim.process import Process
from deadpool.sim.streams import Stream

if TYPE_CHECKING:
    from deadpool.sim.world import World


class Machine:
    def __init__(self, world: World, name: str, *, spare: bool) -> None:
        self.world, self.name, self.spare = world, name, spare
        self.agent = Agent(node=name, standby=world.options.standby)
        self.arena = Arena(name, world.checkers)
        self.processes: dict[str, Process] = {}
        self.streams: list[Stream] = []
        self.doors_closed: Generation = NO_GENERATION  # streams older than this are not let in
        self.streams_cut: Generation = NO_GENERATION  # streams older than this have ended
        self.alive = True
        self._wakes_at: float | None = None
        self.uplink = Link(world.clock, world.rng, world.latency_s, lambda message: world.hear(self, message))
        self.downlink = Link(world.clock, world.rng, world.latency_s, self._obey)

    @property
    def address(self) -> Address:
        return Address(host=self.name, port=1)

    def join(self) -> None:
        rack = self.world.options.rack_of(self.name)
        self.uplink.send(Join(node=self.name, incarnation=self.name, data=self.address, spare=self.spare, rack=rack))

    def die(self) -> None:
        """Power off. The coordinator notices when the link's end arrives, or by silence."""
        if not self.alive:
            return
        self.alive = False
        self.downlink.cut = True
        for process in self.processes.values():
            process.die()
        self.world.streams.machine_died(self)
        self.uplink.send(None)

    # --- the agent's driver ------------------------------------------------------------------------------------------

    def feed(self, input: Any) -> None:
        if not self.alive:
            return
        effects = self.agent.step(input, now=self.world.clock.now)
        self.agent.check()
        for effect in effects:
            self._perform(effect)
        self._arm()

    def _arm(self) -> None:
        wake = self.agent.deadline()
        if wake is not None and (self._wakes_at is None or wake < self._wakes_at):
            self._wakes_at = wake
            self.world.clock.at(wake, self._tick)

    def _tick(self) -> None:
        if self._wakes_at is not None and self.world.clock.now >= self._wakes_at:
            self._wakes_at = None
            self.feed(Tick())

    def _obey(self, message: Any) -> None:
        if isinstance(message, Permit | Plan) and message.generation >= self.agent.generation:
            self.arena.obey(message)
        if isinstance(message, Plan) and message.generation == self.agent.generation:
            self.world.checkers.ordered(self, message)
            self.world.checkers.placed(self, message)
        self.feed(FromCoordinator(message=message))

    def _perform(self, effect: AgentEffect) -> None:
        match effect:
            case ToCoordinator(message=message):
                self.uplink.send(message)
            case ToTrainer(trainer=name, message=message):
                if name in self.processes:
                    self.processes[name].inbox.send(message)
            case StartTrainer(trainer=name):
                self.processes[name] = Process(self, name, self.world.next_number())
                self.processes[name].start()
            case KillTrainer(trainer=name, reason=reason):
                self._kill(name, reason)
            case Emit(event=event):
                self.world.tell(self.name, event.what, event.detail)
            case Finish(reason=reason):
                self.world.tell(self.name, "agent ends", {"reason": reason})
                self.die()
            case _:
                self._perform_on_memory(effect)

    def _perform_on_memory(self, effect: AgentEffect) -> None:
        match effect:
            case Allocate():
                self.world.after(1.0, lambda: self._allocate(effect))
            case ReleaseSegment(segment=segment):
                self.arena.release(segment)
            case HashSlot(slot=slot):
                digest = self.arena.contents[slot].digest()
                self.world.after(self.world.copy_s, lambda: self.feed(Hashed(slot=slot, digest=digest)))
            case WriteSeal(slot=slot, copy=copy):
                self.arena.seal(slot, copy.seal.rank, copy.seal.version)
            case PushCopy():
                self.world.streams.push(self, effect)
            case FetchCopy():
                self.world.streams.fetch(self, effect)
            case CutStreams(generation=generation):
                self.world.streams.cut(self, generation)
            case AcceptOffer(offer=offer, slot=slot):
                self.world.streams.accepted(offer, slot)
            case RefuseOffer(offer=offer, reason=reason):
                self.world.streams.refused(offer, reason)

    def _allocate(self, effect: Allocate) -> None:
        if not self.alive:
            return
        if not self.world.calm and self.world.rng.random() < 0.01:
            self.feed(AllocationFailed(segment=effect.segment, reason="no memory"))
            return
        self.arena.geometry[effect.segment] = effect.geometry
        self.feed(Allocated(segment=effect.segment))

    # --- processes ---------------------------------------------------------------------------------------------------

    def hear_process(self, process: Process, message: Any) -> None:
        ended = isinstance(message, TrainerExited)
        self.feed(message if ended else FromTrainer(trainer=process.name, message=message))

    def _kill(self, name: str, reason: str) -> None:
        process = self.processes.get(name)
        if process is not None:
            self.world.after(0.2, lambda: process.exit(-9, reason) if process.alive else None)

    def process_exited(self, process: Process, code: int, reason: str) -> None:
        """What it had said before it ended arrives before the news of its end."""
        self.processes.pop(process.name, None)
        exited = TrainerExited(trainer=process.name, code=code, reason=reason)
        process.say(exited)
