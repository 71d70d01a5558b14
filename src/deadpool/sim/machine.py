"""A machine: the real agent core, its processes, its memory, its link to a coordinator. It dies all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from deadpool.protocol.agent.coordinator_search import CoordinatorSearch
from deadpool.protocol.agent.core import Agent
from deadpool.protocol.effects import (
    AcceptOffer,
    AgentEffect,
    Allocate,
    Allocated,
    AllocationFailed,
    CoordinatorFound,
    CoordinatorLost,
    CutStreams,
    Emit,
    FetchCopy,
    Finish,
    FromCoordinator,
    FromTrainer,
    Hashed,
    HashSlot,
    KillTrainer,
    LookElsewhere,
    PushCopy,
    RefuseOffer,
    ReleaseSegment,
    Stalled,
    StartTrainer,
    Tick,
    ToCoordinator,
    ToTrainer,
    TrainerExited,
    WriteOut,
    WriteSeal,
    WrittenOut,
)
from deadpool.protocol.identity import NO_GENERATION, Generation, Version
from deadpool.protocol.messages import FenceAck, Inventory, Join, Order, Permit, Plan, Refused, Welcome
from deadpool.protocol.topology import Address
from deadpool.sim.arena import Arena
from deadpool.sim.hosts import Connection
from deadpool.sim.process import Process
from deadpool.sim.streams import Stream

if TYPE_CHECKING:
    from deadpool.sim.world import World


PAUSE_NOTICED_S = 0.1


class Machine:
    def __init__(self, world: World, name: str, *, spare: bool, life: int = 0) -> None:
        """`life` tells it from earlier ones of that name."""
        self.world, self.name, self.spare = world, name, spare
        self.incarnation = f"{name}#{life}"
        self.clock = world.local_clock()
        self.agent = Agent(node=name, standby=world.options.standby)
        self.arena = Arena(name, world.checkers)
        self.processes: dict[str, Process] = {}
        self.streams: list[Stream] = []
        self.doors_closed: Generation = NO_GENERATION  # streams older than this are not let in
        self.streams_cut: Generation = NO_GENERATION  # streams older than this have ended
        self.alive = True
        self.fallen = False  # by a fault: dead, cut off for ever, or taken for either
        self.told_to_leave = False
        self.starts_killed = 0  # processes that a fault ended before they had said anything
        self._wakes_at: float | None = None
        self._search = CoordinatorSearch()
        self._connection: Connection | None = None
        self._calls = 0  # attempts to connect, so that an old one does not go on beside a new one
        self.frozen = Inventory()  # as it said at the last fence
        self.promised = 0  # the highest term that it was asked to follow
        self._paused: list[Callable[[], None]] | None = None  # what came while it did not run

    @property
    def address(self) -> Address:
        """Whoever starts again listens somewhere else."""
        return Address(host=self.incarnation, port=1)

    # --- coordinators ------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Tries one after the other until somebody lets it in."""
        self._calls += 1
        call = self._calls
        self.world.after(0.1, lambda: self._call() if call == self._calls and self.alive else None)

    def _call(self) -> None:
        hosts = self.world.hosts
        host = hosts[self._search.choose(len(hosts))]
        cut = self.world.network.is_severed(self.name, host.name)
        if cut or not host.alive:
            pause_s = (0.5 if self._search.is_over(len(hosts)) else 0.01) + (0.5 if cut else 0.0)
            call = self._calls
            self.world.after(pause_s, lambda: self._call() if call == self._calls and self.alive else None)
            return
        self._connection = Connection(self.world, self, host)
        rack = self.world.options.rack_of(self.name)
        join = Join(node=self.name, incarnation=self.incarnation, data=self.address, spare=self.spare, rack=rack)
        self._connection.send_up(replace(join, footing=self.agent.footing))
        self.feed(CoordinatorFound(patience=self._search.accepted(len(hosts))))

    def hear(self, connection: Connection, message: Any) -> None:
        """Also, on a link that it has left for another coordinator, what was still on its way: the agent has to tell by
        the term. Two links to the same one it never has."""
        current = self._connection
        superseded = current is not None and current is not connection and current.host is connection.host
        if not self.alive or superseded:
            return
        if self._paused is not None:
            self._paused.append(partial(self.hear, connection, message))
        elif message is None:
            if connection is self._connection:
                self._connection = None
                self.feed(CoordinatorLost(reason="closed"))
                self.join()
        elif not isinstance(message.message, Welcome):
            self.fallen |= isinstance(message.message, Refused)
            self.world.checkers.obeying(self, message, lambda: self._obey(message))
        elif connection is self._connection:
            self.promised = max(self.promised, message.term)
            self._search.start_over()
            self._obey(message)

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.send_up(None)
            self._connection = None
        self.join()

    def die(self, *, quietly: bool = False) -> None:
        """The coordinator notices when the end of the link arrives; or, if the power is gone, by silence."""
        if not self.alive:
            return
        self.alive = False
        for process in self.processes.values():
            process.die()
        self.world.streams.machine_died(self)
        if self._connection is not None and not quietly:
            self._connection.send_up(None)

    @property
    def is_paused(self) -> bool:
        return self._paused is not None

    def pause(self, seconds: float) -> None:
        """Its agent does not run for so long (SIGSTOP); its trainers do. Then everything is there at once."""
        if self._paused is None:
            self._paused = []
            self.world.clock.after(seconds, partial(self.resume, seconds))

    def resume(self, seconds: float = 0.0) -> None:
        if self._paused is None or not self.alive:
            return
        waiting, self._paused = self._paused, None
        late = seconds > PAUSE_NOTICED_S and self._wakes_at is not None and self.clock.now > self._wakes_at
        news: list[Callable[[], None]] = [partial(self.feed, Stalled(seconds=seconds))] if late else []
        for action in [*news, *waiting] if self.world.rng.random() < 0.5 else [*waiting, *news]:
            action()
        self._wakes_at = None
        self.feed(Tick())

    def reset_link(self) -> bool:
        if self._connection is not None:
            self._connection.reset()
        return self._connection is not None

    # --- the agent's driver ------------------------------------------------------------------------------------------

    def feed(self, input: Any) -> None:
        if not self.alive:
            return
        if self._paused is not None:
            self._paused.append(partial(self.feed, input))
            return
        effects = self.agent.step(input, now=self.clock.now)
        self.agent.check()
        for effect in effects:
            self._perform(effect)
        self._arm()

    def feed_then(self, input: Any, then: Callable[[], None]) -> None:
        """When the agent has heard it."""
        if self._paused is not None:
            self._paused.append(partial(self.feed_then, input, then))
        elif self.alive:
            self.feed(input)
            then()

    def _arm(self) -> None:
        wake = self.agent.deadline()
        if wake is not None and (self._wakes_at is None or wake < self._wakes_at):
            self._wakes_at = wake
            self.world.clock.at(self.clock.true(wake), partial(self._tick, wake))

    def _tick(self, wake: float) -> None:
        if self._wakes_at == wake and self._paused is None:
            self._wakes_at = None
            self.feed(Tick())

    def _reported(self) -> set[tuple[int, Version]]:
        """At the last fence."""
        return {(copy.seal.rank, copy.seal.version) for copy in (*self.frozen.own, *self.frozen.held)}

    def _obey(self, order: Order) -> None:
        message = order.message
        if order.term == self.promised:
            if isinstance(message, Permit | Plan) and message.generation >= self.agent.generation:
                self.arena.obey(message, self._reported() if isinstance(message, Plan) else ())
            if isinstance(message, Plan) and message.generation == self.agent.generation:
                plan = message.filled_in(self.agent.plan)
                self.world.checkers.ordered(self, plan)
                self.world.checkers.placed(self, plan)
        self.feed(FromCoordinator(term=order.term, message=message))

    def _perform(self, effect: AgentEffect) -> None:
        match effect:
            case ToCoordinator(message=message):
                if isinstance(message, FenceAck):
                    self.frozen = message.inventory
                if self._connection is not None:
                    self._connection.send_up(message)
            case LookElsewhere():
                self._leave()
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
                self.fallen |= self.told_to_leave or (self.starts_killed > 0 and "do not start" in reason)
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
            case WriteOut(copies=copies):
                ranks = tuple(copy.seal.rank for _, copy in copies)
                self.world.after(1.0, lambda: self.feed(WrittenOut(ranks=ranks, folder=self.name)))

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
