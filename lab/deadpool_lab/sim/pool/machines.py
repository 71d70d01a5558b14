"""Machines and jobs of a simulated pool.

`SimJob`: a job as far as a pool sees it: it lacks nodes, and seats the spares that have joined, one after the other.

`SimAgent` and `SimMachine`: Machines of a pool in the simulator: a lock, a host process with its real core, agents
with the real lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.effects import (
    Emit,
    Finish,
    ReleaseLease,
    StartParkedWork,
    StopParkedWork,
    TakeLease,
    ToCoordinator,
)
from deadpool.protocol.features.leases.agent.shared_machine import MachineLease
from deadpool.protocol.features.leases.pool.host import (
    AgentExited,
    Assigned,
    HostInput,
    LeaseSeen,
    PoolHost,
    StartAgent,
    StopAgent,
)
from deadpool.protocol.features.leases.pool.pool import FromHost
from deadpool.protocol.identity import Generation, Schedule
from deadpool.protocol.inputs import Tick
from deadpool.protocol.messages import Assignment, Permit, Plan, PoolJob, RankOrder

if TYPE_CHECKING:
    from deadpool_lab.sim.pool.world import PoolWorld


class SimJob:
    def __init__(self, world: PoolWorld, entry: PoolJob) -> None:
        self.world, self.entry, self.name = world, entry, entry.name
        self.spares: list[SimAgent] = []
        self.seats: list[SimAgent] = []  # on machines of the pool
        self.lacks = 0  # nodes that are lost and not replaced
        self.chosen: list[SimAgent] = []  # planned, and not seated yet
        self.ended = False

    def lose_own_node(self) -> None:
        """One that is no machine of the pool."""
        self.lacks += 1
        self._plan()

    def on_join(self, agent: SimAgent) -> None:
        if self.ended:
            agent.end()
            return
        self.spares.append(agent)
        self._plan()

    def on_seated(self, agent: SimAgent) -> None:
        if agent in self.chosen:
            self.chosen.remove(agent)
            self.seats.append(agent)
            self.lacks -= 1

    def on_lost(self, agent: SimAgent) -> None:
        for among in (self.spares, self.chosen):
            if agent in among:
                among.remove(agent)
        if agent in self.seats:
            self.seats.remove(agent)
            self.lacks += not self.ended
        self._plan()

    def end(self) -> None:
        self.ended = True
        for agent in [*self.spares, *self.chosen, *self.seats]:
            self.world.after(0.5, agent.end)

    def _plan(self) -> None:
        while not self.ended and self.lacks > len(self.chosen) and self.spares:
            agent = self.spares.pop(0)
            self.chosen.append(agent)
            if self.world.rng.random() < 0.7:  # else it joined too late to be told with the fence
                self.world.after(0.05, agent.on_needed)
            self.world.after(0.5, lambda agent=agent: self._order(agent))  # type: ignore[misc]

    def _order(self, agent: SimAgent) -> None:
        """Carries out a plan that sometimes seats another agent than was told."""
        if self.world.rng.random() < 0.1 and agent in self.chosen:
            self.chosen.remove(agent)
            self.spares.append(agent)
            agent.on_plan(seats=False)
            self._plan()
        elif agent in self.chosen:
            agent.on_plan(seats=True)


LOOK_S = 0.5
TICK_S = 0.5


class SimAgent:
    """An agent of one job on one machine: as far as the lease goes, the real one."""

    def __init__(self, machine: SimMachine, job: SimJob) -> None:
        self.machine, self.job, self.world = machine, job, machine.world
        self._parent = machine.host  # the process that hears of its end, if it still runs then
        self._state = AgentState(machine.name)
        self._lease = MachineLease(self._state, shared=True)
        self.alive, self.seated = True, False
        self.world.after(1.0, lambda: job.on_join(self) if self.alive else None)
        self.world.after(LOOK_S, self._look)

    def on_needed(self) -> None:
        if self.alive:
            self._lease.ask()
            self._perform()

    def on_plan(self, *, seats: bool) -> None:
        if self.alive:
            self._carry_out(_plan(seats))

    def _carry_out(self, plan: Plan) -> None:
        if self._lease.permits(plan) and plan.orders:
            self.seated = True
            self.world.check_seat(self)
            self.job.on_seated(self)
        self._perform()

    def _look(self) -> None:
        """Looks at the machine as the agent's shell does."""
        if self.alive:
            if self.machine.owner not in (None, self):
                self._lease.on_held_elsewhere("another job")
                self._perform()
            self.world.after(LOOK_S, self._look)

    def _perform(self) -> None:
        for effect in self._state.take_effects():
            match effect:
                case TakeLease():
                    self.world.clock.after(0.0, self._take)
                case ReleaseLease():
                    self.machine.owner = None
                case Finish():
                    self.end(orderly=True)
                case ToCoordinator() | Emit():
                    pass  # the end of this process says the same
                case _:
                    raise AssertionError(f"{effect} is none of a lease")

    def _take(self) -> None:
        if not self.alive:
            return
        if self.machine.owner in (None, self):
            self.machine.owner, self.machine.held_since = self, self.world.clock.now
            if (plan := self._lease.on_taken()) is not None:
                self._carry_out(plan)
            self._perform()
        else:
            self._lease.on_held_elsewhere("another job")
            self._perform()
            self.world.check_refused(self)

    def end(self, *, orderly: bool = False) -> None:
        """The kernel frees its lock, and its job sees that the link has ended."""
        if not self.alive:
            return
        self.alive = False
        if self.machine.owner is self:
            self.machine.owner = None
        if self.machine.agents.get(self.job.name) is self:
            del self.machine.agents[self.job.name]
        self.world.after(0.2, lambda: self.job.on_lost(self))
        if (parent := self._parent) is not None:
            self.world.after(0.2, lambda: self.machine.feed(AgentExited(job=self.job.name, code=0), parent))


class SimMachine:
    def __init__(self, world: PoolWorld, name: str, memory_bytes: int) -> None:
        self.world, self.name, self.memory_bytes = world, name, memory_bytes
        self.owner: SimAgent | None = None  # of the lock
        self.held_since = 0.0
        self.agents: dict[str, SimAgent] = {}
        self.host: PoolHost | None = None
        self.known: Assignment | None = None  # on its disk
        self.start_host()

    def start_host(self) -> None:
        """A machine that comes back, or a host process that was killed and is started again."""
        if self.host is not None:
            return
        self.host = host = PoolHost(self.name, memory_bytes=self.memory_bytes)
        self.feed(LeaseSeen(job=self._leased_to()), host)
        if self.known is not None:
            self.feed(Assigned(jobs=self.known.jobs), host)
        self._tick(host)

    def kill_host(self) -> None:
        """Agents without the lease leave with it."""
        self.host = None
        for agent in list(self.agents.values()):
            if self.owner is not agent:
                agent.end(orderly=True)

    def die(self) -> None:
        self.host = None
        for agent in list(self.agents.values()):
            agent.end()

    def _leased_to(self) -> str:
        return self.owner.job.name if self.owner is not None else ""

    def _tick(self, host: PoolHost) -> None:
        if self.host is host:
            self.feed(LeaseSeen(job=self._leased_to()), host)
            self.feed(Tick(), host)
            self.world.tell_pool(self, FromHost(state=host.state))
            self.world.after(TICK_S, lambda: self._tick(host))

    def on_assignment(self, assignment: Assignment) -> None:
        if self.host is not None:
            self.known = assignment
            self.feed(Assigned(jobs=assignment.jobs), self.host)

    def feed(self, input: HostInput, host: PoolHost) -> None:
        """What is meant for a host process that was killed is lost."""
        if self.host is not host:
            return
        effects = host.step(input, now=self.world.clock.now)
        host.check()
        for effect in effects:
            match effect:
                case StartAgent(job=job):
                    self._start(job.name, host)
                case StopAgent(job=name):
                    if name in self.agents:
                        self.world.after(0.3, self.agents[name].end)
                case Emit():
                    pass
                case StartParkedWork() | StopParkedWork():
                    raise AssertionError("no simulated machine has work while it is parked")
                case _ as never:
                    assert_never(never)

    def _start(self, name: str, host: PoolHost) -> None:
        job = self.world.jobs.get(name)
        if job is None or job.ended or name in self.agents:  # no coordinator answers, or the name is taken
            self.world.after(1.0, lambda: self.feed(AgentExited(job=name, code=1), host))
        else:
            self.agents[name] = SimAgent(self, job)


def _plan(seats: bool) -> Plan:
    generation = Generation(1, 1)
    permit = Permit(generation=generation, watermark=None, keep_from=0, schedule=Schedule())
    orders = (RankOrder(rank=0, keep=False),) if seats else ()
    return Plan(generation=generation, cause="", resume=None, permit=permit, store_rank=0, orders=orders)
