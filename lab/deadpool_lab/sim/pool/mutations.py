"""Rules of pools broken on purpose: each has to be noticed by a checker of the simulated pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from deadpool.protocol.features.leases.agent.shared_machine import MachineLease
from deadpool.protocol.features.leases.pool import pool
from deadpool.protocol.features.leases.pool import pool as pool_core
from deadpool.protocol.features.leases.pool.host import PoolHost
from deadpool.protocol.messages import HostState, Plan, PoolJob
from deadpool_lab.sim.mutations.mutation import Patch


def plan_taken_before_the_lease(patch: Patch) -> None:
    real = MachineLease.permits

    def permits(self: MachineLease, plan: Plan) -> bool:
        real(self, plan)
        return True

    patch.set(MachineLease, "permits", permits)


def refused_agent_stays(patch: Patch) -> None:
    patch.set(MachineLease, "on_held_elsewhere", lambda self, owner: None)


def lease_kept_when_not_needed(patch: Patch) -> None:
    patch.set(MachineLease, "_release_unneeded", lambda self: None)


def end_of_a_lease_not_seen(patch: Patch) -> None:
    real = PoolHost._on_lease

    def on_lease(self: PoolHost, job: str) -> None:
        if job:
            real(self, job)

    patch.set(PoolHost, "_on_lease", on_lease)


def leased_machine_told_of_its_job_only(patch: Patch) -> None:
    real = pool.assign

    def assign(hosts: Sequence[HostState], jobs: Sequence[PoolJob]) -> dict[str, tuple[str, ...]]:
        return real(hosts, jobs) | {host.host: (host.leased_to,) for host in hosts if host.leased_to}

    patch.set(pool_core, "assign", assign)


def memory_ignored(patch: Patch) -> None:
    real = pool._park

    def park(job: PoolJob, hosts: list[pool._FreeHost]) -> None:
        for host in hosts:
            host.left_bytes = 1 << 40
        real(job, hosts)

    patch.set(pool, "_park", park)
    patch.set(pool_core.Pool, "check", lambda self: None)


MUTATIONS: dict[str, Callable[[Patch], None]] = {
    "plan taken before the lease": plan_taken_before_the_lease,
    "refused agent stays": refused_agent_stays,
    "lease kept when not needed": lease_kept_when_not_needed,
    "end of a lease not seen": end_of_a_lease_not_seen,
    "leased machine told of its job only": leased_machine_told_of_its_job_only,
    "memory ignored": memory_ignored,
}
