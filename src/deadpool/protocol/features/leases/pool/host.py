"""One machine of a pool: which agents run on it, and what it does while no job has it.

While it is free it runs one agent for each job that it was told to park trainers for, each a spare of its job. Once an
agent has taken the machine, the others are told to leave. When the lease ends, because its agent has ended, the machine
is offered to all jobs again. None of this needs a pool that answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from deadpool.events.event import Event
from deadpool.protocol.effects import Emit, StartParkedWork, StopParkedWork, earliest
from deadpool.protocol.features.leases.parked_work import ParkedWork
from deadpool.protocol.inputs import ParkedWorkEnded, Tick
from deadpool.protocol.messages import MachineState, PoolJob

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
RAN_WELL_S = 10.0
"""An agent that ran for so long is started again after the shortest pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    jobs: tuple[PoolJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSeen:
    """The job that has this machine. Empty: it is free."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadySeen:
    """Jobs whose agents here have their trainers parked, or train."""

    jobs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExited:
    job: str
    code: int
    reason: str = ""  # why it could not even be started


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAgent:
    job: PoolJob


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAgent:
    """An order to an agent to leave its job in an orderly way."""

    job: str


HostInput = Assigned | LeaseSeen | ReadySeen | AgentExited | ParkedWorkEnded | Tick
HostEffect = StartAgent | StopAgent | StartParkedWork | StopParkedWork | Emit


@dataclass(slots=True)
class _Agent:
    started_at: float
    stopping: bool = False


class PoolHost:
    def __init__(self, name: str, *, memory_bytes: int, works: bool = False, machine: str = "") -> None:
        self.name, self._memory_bytes, self._machine = name, memory_bytes, machine
        self._effects: list[HostEffect] = []
        self._jobs: dict[str, PoolJob] = {}
        self._agents: dict[str, _Agent] = {}
        self._ready: frozenset[str] = frozenset()
        self.leased_to = ""
        self._not_before: dict[str, float] = {}  # when an agent may be started again, by job
        self._pauses_s: dict[str, float] = {}
        self.work = ParkedWork(self._effects.append, self._emit, enabled=works)

    # --- the contract of a core --------------------------------------------------------------------------------------

    def step(self, input: HostInput, *, now: float) -> list[HostEffect]:
        match input:
            case Assigned(jobs=jobs):
                self._jobs = {job.name: job for job in jobs}
            case LeaseSeen(job=job):
                self._on_lease(job)
            case ReadySeen(jobs=jobs):
                self._ready = jobs
            case AgentExited():
                self._on_exit(input, now)
            case ParkedWorkEnded():
                self.work.on_ended(input, now)
            case Tick():
                pass
            case _ as never:
                assert_never(never)
        self._settle(now)
        effects, self._effects[:] = list(self._effects), []
        return effects

    def deadline(self) -> float | None:
        waiting = [at for job, at in self._not_before.items() if job in self._jobs and job not in self._agents]
        return earliest(min(waiting, default=None), self.work.deadline())

    def check(self) -> None:
        if self.leased_to:
            others = [job for job, agent in self._agents.items() if job != self.leased_to and not agent.stopping]
            assert not others, (self.name, self.leased_to, others)

    @property
    def state(self) -> MachineState:
        return MachineState(
            host=self.name,
            memory_bytes=self._memory_bytes,
            parked=tuple(sorted(self._agents)),
            ready=tuple(sorted(self._ready & self._agents.keys())),
            leased_to=self.leased_to,
            work=self.work.state.value,
            machine=self._machine,
        )

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _on_lease(self, job: str) -> None:
        if job == self.leased_to:
            return
        if job:
            self.work.stop(f"job {job} takes this machine")
            self._emit("pool_leased", host=self.name, job=job)
        else:
            self._emit("pool_released", host=self.name, job=self.leased_to)
        self.leased_to = job

    def _on_exit(self, ended: AgentExited, now: float) -> None:
        job = ended.job
        agent = self._agents.pop(job, None)
        if agent is None:
            return
        self._ready -= {job}
        lasted = now - agent.started_at >= RAN_WELL_S
        pause_s = FIRST_PAUSE_S if lasted or agent.stopping else self._pauses_s.get(job, FIRST_PAUSE_S)
        self._pauses_s[job] = min(2 * pause_s, LONGEST_PAUSE_S)
        self._not_before[job] = now + pause_s
        detail = {"host": self.name, "job": job, "code": ended.code, "again_in_s": pause_s, "reason": ended.reason}
        self._emit("pool_agent_ended", **detail)

    def _settle(self, now: float) -> None:
        """Makes, after every input, what runs what should run."""
        wanted = [self.leased_to] if self.leased_to else list(self._jobs)
        self._stop(job for job in self._agents if job not in wanted)
        if self.leased_to or any(agent.stopping for agent in self._agents.values()):
            return  # one that still leaves has its memory
        for job in wanted:
            if job not in self._agents and now >= self._not_before.get(job, now):
                self._agents[job] = _Agent(started_at=now)
                self._effects.append(StartAgent(job=self._jobs[job]))
        if self._agents and self._ready >= self._agents.keys():
            self.work.start_if_due(now)

    def _stop(self, jobs: Iterable[str]) -> None:
        for job in list(jobs):
            if not self._agents[job].stopping:
                self._agents[job].stopping = True
                self._effects.append(StopAgent(job=job))

    def _emit(self, what: str, **detail: object) -> None:
        self._effects.append(Emit(event=Event(what=what, node=self.name, detail=detail)))
