"""A machine: the real agent core, its processes, its memory and its link to a coordinator, which all die together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from msgspec.structs import replace

from deadpool.protocol.agent.core import Agent
from deadpool.protocol.agent.leadership.coordinator_session import CoordinatorSearch
from deadpool.protocol.causes import EndCause
from deadpool.protocol.effects import (
    AcceptOffer,
    AgentEffect,
    Allocate,
    CompleteCheckpoint,
    Contribute,
    CutStreams,
    DataEffect,
    Emit,
    EndWriter,
    FeatureEffect,
    FetchCopy,
    Finish,
    HashSlot,
    ImportModules,
    KillTrainer,
    LookElsewhere,
    ProbePeers,
    PushCopy,
    RefuseOffer,
    ReleaseLease,
    ReleaseSegment,
    StartParkedWork,
    StartTrainer,
    StopParkedWork,
    TakeLease,
    ToCoordinator,
    ToTrainer,
    WriteOut,
    WritePart,
    WriteSeal,
)
from deadpool.protocol.health import HealthSample
from deadpool.protocol.identity import NO_GENERATION, Address, Generation, Version
from deadpool.protocol.inputs import (
    Allocated,
    AllocationFailed,
    CoordinatorFound,
    CoordinatorLost,
    FromCoordinator,
    FromTrainer,
    Hashed,
    HealthSampled,
    LeasedElsewhere,
    LeaseTaken,
    MemorySeen,
    PeersProbed,
    Stalled,
    Tick,
    TrainerActivity,
    TrainerExited,
    WrittenOut,
)
from deadpool.protocol.messages import FenceAck, Inventory, Join, JoinRefused, Order, Permit, Plan, Seat, Welcome
from deadpool_lab.sim.arena import Arena
from deadpool_lab.sim.device import Device
from deadpool_lab.sim.hosts import CoordinatorLink
from deadpool_lab.sim.process import Process
from deadpool_lab.sim.streams import CopyStream

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


PAUSE_NOTICED_S = 0.1
PROBE_S = 1.0


class Machine:
    def __init__(self, world: World, name: str, *, spare: bool, life: int = 0) -> None:
        """`life` distinguishes it from earlier machines of that name."""
        self.world, self.name, self.spare = world, name, spare
        self.incarnation = f"{name}#{life}"
        self.clock = world.local_clock()
        self.agent = Agent(node=name, standby=world.options.standby, shared=spare)
        self.arena = Arena(name, world.checkers.copies)
        self.processes: dict[str, Process] = {}
        self.streams: list[CopyStream] = []
        self.oldest_admitted: Generation = NO_GENERATION  # older streams are refused
        self.streams_cut: Generation = NO_GENERATION  # older streams have ended
        self.alive = True
        self.is_lost = False  # by a fault: it is dead, cut off for ever, or taken for either
        self.told_to_leave = False
        self.error_counts: dict[str, int] = {}  # by kind: what its kernel has counted
        self.device = Device(world, name)
        self.memory_left: float | None = None  # the share that other processes leave; None: all that copies leave
        self.is_leased = not spare  # to this job: no other can take it
        self.is_leased_elsewhere = False
        self.starts_killed = 0  # processes that a fault ended before they said hello
        self._wakes_at: float | None = None
        self._search = CoordinatorSearch()
        self._connection: CoordinatorLink | None = None
        self._attempts = 0  # to connect: an older attempt ends when a newer one begins
        self.frozen = Inventory()  # as reported at the last fence
        self.promised = 0  # the highest term that it was asked to follow
        self._paused: list[Callable[[], None]] | None = None  # inputs that came while it did not run

    @property
    def address(self) -> Address:
        """A machine that starts again listens at another address."""
        return Address(host=self.incarnation, port=1)

    # --- coordinators ------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Tries one coordinator after the other until one accepts it."""
        self._attempts += 1
        attempt = self._attempts
        self.world.after(0.1, lambda: self._connect() if attempt == self._attempts and self.alive else None)

    def _connect(self) -> None:
        hosts = self.world.hosts
        host = hosts[self._search.choose(len(hosts))]
        cut = self.world.network.is_severed(self.name, host.name)
        if cut or not host.alive:
            pause_s = (0.5 if self._search.is_over(len(hosts)) else 0.01) + (0.5 if cut else 0.0)
            attempt = self._attempts
            self.world.after(pause_s, lambda: self._connect() if attempt == self._attempts and self.alive else None)
            return
        self._connection = CoordinatorLink(self.world, self, host)
        rack = self.world.options.rack_of(self.name)
        join = Join(node=self.name, incarnation=self.incarnation, data=self.address, spare=self.spare, rack=rack)
        self._connection.send_up(replace(join, footing=self.agent.footing))
        self.feed(CoordinatorFound(patience=self._search.accepted(len(hosts))))

    def on_message(self, connection: CoordinatorLink, message: Any) -> None:
        """Messages still come in on a link that the machine has left for another coordinator: the agent has to
        recognise them by their term. There are never two links to the same coordinator."""
        current = self._connection
        superseded = current is not None and current is not connection and current.host is connection.host
        if not self.alive or superseded:
            return
        if self._paused is not None:
            self._paused.append(partial(self.on_message, connection, message))
        elif message is None:
            if connection is self._connection:
                self._connection = None
                self.feed(CoordinatorLost(reason="closed"))
                self.join()
        elif not isinstance(message.message, Welcome):
            self.is_lost |= isinstance(message.message, JoinRefused)
            self.world.checkers.check_obedience(self, message, lambda: self._obey(message))
        elif connection is self._connection:
            self.promised = max(self.promised, message.term)
            self._search.start_over()
            self._obey(message)

    def _leave_coordinator(self) -> None:
        if self._connection is not None:
            self._connection.send_up(None)
            self._connection = None
        self.join()

    def die(self, *, quietly: bool = False) -> None:
        """The coordinator notices when the end of the link arrives or, without power (`quietly`), by silence."""
        if not self.alive:
            return
        self.alive = False
        for process in self.processes.values():
            process.die()
        self.world.streams.on_machine_death(self)
        if self._connection is not None and not quietly:
            self._connection.send_up(None)

    @property
    def is_paused(self) -> bool:
        return self._paused is not None

    def pause(self, seconds: float) -> None:
        """The agent does not run for so long (SIGSTOP), but its trainers do. Then all its inputs come at once."""
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

    # --- other jobs that the machine may serve -----------------------------------------------------------------------

    def lease_elsewhere(self, noticed_s: float) -> None:
        """Another job has taken it. The agent finds out when it needs the machine, or when it looks the next time."""
        self.is_leased_elsewhere = self.told_to_leave = True
        self.world.clock.after(noticed_s, lambda: self.feed(LeasedElsewhere(owner="another job")))

    def _take_lease(self) -> None:
        self.is_leased = not self.is_leased_elsewhere
        answer = LeaseTaken() if self.is_leased else LeasedElsewhere(owner="another job")
        self.world.clock.after(0.0, lambda: self.feed(answer))

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
        self._set_timer()

    def feed_then(self, input: Any, then: Callable[[], None]) -> None:
        """Calls `then` when the agent has handled the input, which waits while the agent is paused."""
        if self._paused is not None:
            self._paused.append(partial(self.feed_then, input, then))
        elif self.alive:
            self.feed(input)
            then()

    def _set_timer(self) -> None:
        wake = self.agent.deadline()
        if wake is not None and (self._wakes_at is None or wake < self._wakes_at):
            self._wakes_at = wake
            self.world.clock.at(self.clock.true(wake), partial(self._tick, wake))

    def _tick(self, wake: float) -> None:
        if self._wakes_at == wake and self._paused is None:
            self._wakes_at = None
            self._observe()
            if self.world.memory_bytes:
                self.sample_health()
            if self.world.slots_grow:
                self._see_memory()
            self.feed(Tick())

    def _see_memory(self) -> None:
        """Slots grow as far as there is memory. In some seeds it is short now and then: slots are given back."""
        total = self.world.memory_for_slots
        left = 0 if self.world.is_memory_short else max(0, total - self.arena.size_bytes)
        self.feed(MemorySeen(total_bytes=total, available_bytes=left))

    def sample_health(self, gauges: dict[str, float] | None = None) -> None:
        """What its agent's shell finds at a look."""
        total = self.world.memory_bytes
        free = max(0, total - self.arena.size_bytes)
        left = free if self.memory_left is None else min(free, int(self.memory_left * total))
        counters = dict(self.error_counts)
        sample = HealthSample(counters=counters, gauges=gauges or {}, memory_bytes=total, available_bytes=left)
        self.feed(HealthSampled(sample=sample))

    def _observe(self) -> None:
        """What the kernel says of the processes by now."""
        for process in list(self.processes.values()):
            if process.activity is not process.observed:
                process.observed = process.activity
                self.feed(TrainerActivity(trainer=process.name, activity=process.activity))

    def _reported_copies(self) -> set[tuple[int, Version]]:
        """The copies that it reported at the last fence."""
        copies = {(copy.seal.rank, copy.seal.version) for copy in (*self.frozen.own, *self.frozen.held)}
        return copies | {(parity.keeper, parity.version) for parity in self.frozen.joint}

    def _obey(self, order: Order) -> None:
        message = order.message
        if order.term == self.promised:
            if isinstance(message, Permit | Plan) and message.generation >= self.agent.generation:
                self.arena.obey(message, self._reported_copies() if isinstance(message, Plan) else ())
            if isinstance(message, Plan) and message.generation == self.agent.generation:
                plan = message.filled_in(self.agent.plan)
                self.world.checkers.copies.check_sources(self, plan)
                self.world.checkers.copies.check_placement(self, plan)
        self.feed(FromCoordinator(term=order.term, message=message))

    def _perform(self, effect: AgentEffect) -> None:
        match effect:
            case ToCoordinator(message=message):
                if isinstance(message, FenceAck):
                    self.frozen = message.inventory
                if self._connection is not None:
                    self._connection.send_up(message)
            case LookElsewhere():
                self._leave_coordinator()
            case TakeLease():
                self._take_lease()
            case ReleaseLease():
                self.is_leased = False
            case ToTrainer(trainer=name, message=message):
                if isinstance(message, Seat):
                    self.world.checkers.check_lease(self)
                if name in self.processes:
                    self.processes[name].inbox.send(message)
            case StartTrainer(trainer=name):
                self.processes[name] = Process(self, name, self.world.next_number())
                self.processes[name].start()
            case KillTrainer(trainer=name, reason=reason):
                self._kill(name, reason)
            case Emit(event=event):
                self.world.log(self.name, event.what, event.detail)
            case Finish(cause=cause, reason=reason):
                self.world.log(self.name, "agent ends", {"reason": reason})
                self.is_lost |= self.told_to_leave or (self.starts_killed > 0 and cause is EndCause.NO_STARTS)
                self.die()
            case ProbePeers():
                self.world.after(PROBE_S, lambda: self.feed(self._probed(effect)))
            case StartParkedWork() | StopParkedWork() | ImportModules():
                raise AssertionError("no simulated node has work while it is parked, or compiled code")
            case _:
                self._perform_on_memory(effect)

    def _perform_on_memory(self, effect: DataEffect) -> None:
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
            case PushCopy() | Contribute():
                self.world.streams.push(self, effect)
            case FetchCopy(fetch=fetch) if fetch.fallback:
                self.world.durable.load(self, effect)
            case FetchCopy():
                self.world.streams.fetch(self, effect)
            case WritePart():
                self.world.durable.write_part(self, effect)
            case CompleteCheckpoint():
                self.world.durable.complete(self, effect)
            case CutStreams(generation=generation):
                self.world.streams.cut(self, generation)
            case AcceptOffer():
                self.world.streams.on_accepted(effect)
            case RefuseOffer(offer=offer, refusal=refusal):
                self.world.streams.on_refused(offer, refusal)
            case WriteOut(copies=copies):
                ranks = tuple(copy.seal.rank for _, copy in copies)
                self.world.after(1.0, lambda: self.feed(WrittenOut(ranks=ranks, folder=self.name)))
            case EndWriter():
                pass  # a simulated write ends by itself
            case FeatureEffect():
                raise AssertionError(f"no simulated node does {effect}")
            case _ as never:
                assert_never(never)

    def _probed(self, probe: ProbePeers) -> PeersProbed:
        """A machine that was started again answers at another address only, and one without power does not."""
        machines = {peer.node: self.world.incarnations.get(peer.address.host) for peer in probe.peers}
        reached = [
            name
            for name, machine in machines.items()
            if machine is not None and machine.alive and not self.world.network.is_severed(self.name, name)
        ]
        return PeersProbed(number=probe.number, unreachable=tuple(name for name in machines if name not in reached))

    def _allocate(self, effect: Allocate) -> None:
        if not self.alive:
            return
        if not self.world.calm and self.world.rng.random() < 0.01:
            self.feed(AllocationFailed(segment=effect.segment, reason="no memory"))
            return
        self.arena.allocate(effect.segment, effect.geometry, effect.count)
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
        """Messages that the process sent before it ended arrive before the news of its end."""
        self.processes.pop(process.name, None)
        exited = TrainerExited(trainer=process.name, code=code, reason=reason)
        process.say(exited)
