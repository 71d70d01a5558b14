"""Which machines keep trainers parked for which jobs, within their memory: a pure function, `assign`.

Machines are given out in rounds. In each round every job, the most important first, gets one more machine, so that no
job has a second before all have one that can have one. A job stays where it is parked already if nothing speaks against
it: a rehearsal costs time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deadpool.protocol.messages import HostState, PoolJob


@dataclass(slots=True)
class _FreeHost:
    state: HostState
    left_bytes: int
    jobs: list[str]


def assign(hosts: Sequence[HostState], jobs: Sequence[PoolJob]) -> dict[str, tuple[str, ...]]:
    """Jobs by machine. A machine that a job has keeps no trainers of others: it is told what to do when it is free
    again, because the pool may be dead by then."""
    returning = _distribute(hosts, jobs, leased=[])
    leased = [host for host in hosts if host.leased_to]
    free = _distribute([host for host in hosts if not host.leased_to], jobs, leased=[host.leased_to for host in leased])
    return {**free, **{host.host: returning[host.host] for host in leased}}


def _distribute(hosts: Sequence[HostState], jobs: Sequence[PoolJob], leased: list[str]) -> dict[str, tuple[str, ...]]:
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
