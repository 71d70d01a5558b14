"""A pool of machines: its process, and which machine serves which job.

`assign`: which machines keep trainers parked for which jobs, within their memory: a pure function, `assign`.

Machines are given out in rounds. In each round every job, the most important first, gets one more machine, so that
no job has a second before all have one that can have one. A job stays where it is parked already if nothing speaks
against it: a rehearsal costs time.

The pool's process: it knows the jobs and the machines, and tells each machine which jobs to park trainers for.

It decides no lease, so nothing waits for it: machines go on with what they were told last, and join again when a
pool is back. What it knows of machines it is told by them; only the jobs are kept on disk by its shell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from deadpool.events.event import Event
from deadpool.protocol.effects import Emit
from deadpool.protocol.messages import Assignment, MachineState, PoolJob, PoolNotice


@dataclass(slots=True)
class _FreeHost:
    state: MachineState
    left_bytes: int
    jobs: list[str]


def assign(hosts: Sequence[MachineState], jobs: Sequence[PoolJob]) -> dict[str, tuple[str, ...]]:
    """Jobs by machine. A machine that a job has keeps no trainers of others: it is told what to do when it is free
    again, because the pool may be dead by then."""
    returning = _distribute(hosts, jobs, leased=[])
    leased = [host for host in hosts if host.leased_to]
    free = _distribute([host for host in hosts if not host.leased_to], jobs, leased=[host.leased_to for host in leased])
    return {**free, **{host.host: returning[host.host] for host in leased}}


def _distribute(
    hosts: Sequence[MachineState], jobs: Sequence[PoolJob], leased: list[str]
) -> dict[str, tuple[str, ...]]:
    free = [_FreeHost(host, host.memory_bytes, []) for host in hosts]
    ordered = sorted(jobs, key=lambda job: (-job.priority, job.name))
    limits = {job.name: _limit(job, leased.count(job.name), len(free)) for job in ordered}
    for number in range(len(free)):
        for job in ordered:
            if number < limits[job.name]:
                _park(job, free)
    rank = {job.name: number for number, job in enumerate(ordered)}
    return {host.state.host: tuple(sorted(host.jobs, key=rank.__getitem__)) for host in free}


def _limit(job: PoolJob, leased: int, free: int) -> int:
    """A job that may have no further machine needs none to be ready for it."""
    if job.leased_most and leased >= job.leased_most:
        return 0
    return min(job.parked_most or free, free)


def _park(job: PoolJob, hosts: list[_FreeHost]) -> None:
    fit = [host for host in hosts if job.name not in host.jobs and host.left_bytes >= job.memory_bytes]
    if fit:
        best = min(fit, key=lambda host: (job.name not in host.state.parked, len(host.jobs), host.state.host))
        best.jobs.append(job.name)
        best.left_bytes -= job.memory_bytes


REFUSED_LATELY_S = 60.0
"""A machine that is refused tries again. One that has not for so long has been given another name, or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromHost:
    state: MachineState


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLost:
    host: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdded:
    job: PoolJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRemoved:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToHost:
    host: str
    message: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class WarnHost:
    host: str
    message: PoolNotice


PoolInput = FromHost | HostLost | JobAdded | JobRemoved
PoolEffect = ToHost | WarnHost | Emit


class MachinePool:
    def __init__(self, jobs: tuple[PoolJob, ...] = ()) -> None:
        self.jobs: dict[str, PoolJob] = {job.name: job for job in jobs}
        self.hosts: dict[str, MachineState] = {}
        self._told: dict[str, Assignment] = {}
        self._refused: dict[tuple[str, str], tuple[float, str]] = {}  # name and machine -> when last, why
        self._effects: list[PoolEffect] = []

    def step(self, input: PoolInput, *, now: float) -> list[PoolEffect]:
        match input:
            case FromHost(state=state) if (reason := self.refusal(state)) is not None:
                self._on_refused(state, reason, now)
            case FromHost(state=state):
                self._on_state(state)
            case HostLost(host=host, reason=reason):
                if self.hosts.pop(host, None) is not None:
                    self._told.pop(host, None)
                    self._emit("pool_host_lost", host=host, reason=reason)
            case JobAdded(job=job):
                self.jobs[job.name] = job
                self._emit("pool_job_added", job=job.name, priority=job.priority)
            case JobRemoved(name=name):
                if self.jobs.pop(name, None) is not None:
                    self._emit("pool_job_removed", job=name)
            case _ as never:
                assert_never(never)
        self._assign()
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float | None:
        return None

    def check(self) -> None:
        for host, told in self._told.items():
            needed = sum(job.memory_bytes for job in told.jobs)
            assert needed <= self.hosts[host].memory_bytes, (host, needed)

    # --- two machines of one name ------------------------------------------------------------------------------------

    def refusal(self, state: MachineState) -> str | None:
        """Why a machine is not taken in; None: it is. Were the newest taken instead, both would come again and again,
        each at the cost of the other."""
        known = self.hosts.get(state.host)
        if known is None or known.machine == state.machine:
            return None
        return (
            f"{known.machine} is machine {state.host} of this pool, so {state.machine} cannot be it too: "
            "give one of them another --name"
        )

    def _on_refused(self, state: MachineState, reason: str, now: float) -> None:
        """Refuses a host. It comes again and again; people are told once."""
        if not any(why == reason for _, why in self.refused(now)):
            self._emit("pool_host_refused", host=state.host, reason=reason)
            self._effects.append(WarnHost(host=state.host, message=PoolNotice(text=reason)))
        self._refused[state.host, state.machine] = (now, reason)

    def refused(self, now: float) -> list[tuple[str, str]]:
        """Names and reasons, for as long as it lasts."""
        self._refused = {key: seen for key, seen in self._refused.items() if now - seen[0] < REFUSED_LATELY_S}
        return [(host, why) for (host, _), (_, why) in self._refused.items()]

    # --- machines ----------------------------------------------------------------------------------------------------

    def _on_state(self, state: MachineState) -> None:
        before = self.hosts.get(state.host)
        self.hosts[state.host] = state
        self._refused.pop((state.host, state.machine), None)
        if before is None:
            self._emit("pool_host_joined", host=state.host, memory_bytes=state.memory_bytes)
        was_leased_to = before.leased_to if before is not None else ""
        if state.leased_to and state.leased_to != was_leased_to:
            self._emit("pool_leased", host=state.host, job=state.leased_to)
        elif was_leased_to and not state.leased_to:
            self._emit("pool_released", host=state.host, job=was_leased_to)

    def _assign(self) -> None:
        chosen = assign(list(self.hosts.values()), list(self.jobs.values()))
        for host, names in chosen.items():
            told = Assignment(jobs=tuple(self.jobs[name] for name in names if name in self.jobs))
            if self._told.get(host) != told:
                self._told[host] = told
                self._effects.append(ToHost(host=host, message=told))
                self._emit("pool_assigned", host=host, jobs=[job.name for job in told.jobs])

    def _emit(self, what: str, **detail: object) -> None:
        self._effects.append(Emit(event=Event(what=what, detail=detail)))
