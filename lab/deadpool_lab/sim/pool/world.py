"""One seed: machines, jobs and faults are drawn, faults happen, then they end, and nobody may wait in vain.

Checkers: (lease) a rank begins only where its agent has the machine's lock, and no other job has a rank there; (memory)
parked trainers fit; (offered) no job lacks a node while a free machine could serve it, with a pool or without one, no
lease is kept for nothing, and a machine that is leased knows whom to serve next.

`MUTATIONS` are rules of pools broken on purpose: each has to be noticed by one of these checkers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from deadpool.protocol.features.leases.agent.shared_machine import MachineLease
from deadpool.protocol.features.leases.pool import pool
from deadpool.protocol.features.leases.pool import pool as pool_core
from deadpool.protocol.features.leases.pool.host import PoolHost
from deadpool.protocol.features.leases.pool.pool import (
    FromHost,
    HostLost,
    JobAdded,
    JobRemoved,
    MachinePool,
    PoolInput,
    ToHost,
)
from deadpool.protocol.messages import MachineState, Plan, PoolJob
from deadpool_lab.sim.checking import Violation, fail
from deadpool_lab.sim.clock import Clock
from deadpool_lab.sim.mutations.mutation import Patch
from deadpool_lab.sim.pool.machines import SimAgent, SimJob, SimMachine

CALM_S, END_S = 60.0, 160.0
KEPT_S = 30.0
"""Enough for a plan to follow a lease, or for the lease to be given back, once faults have ended."""


class PoolWorld:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.pool: MachinePool | None = MachinePool()
        self._saved: tuple[PoolJob, ...] = ()
        self.jobs: dict[str, SimJob] = {}
        count = self.rng.randint(1, 4)
        self.machines = {f"s{i}": SimMachine(self, f"s{i}", self.rng.choice((1, 2, 4))) for i in range(count)}
        self.pool_dies_for_good = self.rng.random() < 0.3
        self.seats = 0
        self.unknown: set[str] = set()  # jobs that came to no machine before the pool died for good
        for index in range(self.rng.randint(2, 4)):
            added_s = 0.0 if index < 2 else self.rng.uniform(1, CALM_S / 2)
            self.clock.after(added_s, lambda index=index: self._add_job(index))  # type: ignore[misc]
        for _ in range(self.rng.randint(4, 24)):
            self.clock.after(self.rng.uniform(5, CALM_S), self._fault)
        if self.pool_dies_for_good:
            self.clock.after(self.rng.uniform(5, CALM_S), self.kill_pool)

    def after(self, longest_s: float, action: Callable[[], None]) -> None:
        self.clock.after(longest_s * (0.1 + 0.9 * self.rng.random()), action)

    def run(self) -> None:
        self.clock.at(CALM_S, self._heal)
        while self.clock.now < END_S and self.clock.advance():
            pass
        self._check_offered()

    # --- the pool ----------------------------------------------------------------------------------------------------

    def _add_job(self, index: int) -> None:
        entry = PoolJob(
            name=f"job{index}", coordinators="", secret_file="", script=(), folder="",
            priority=self.rng.randint(0, 2), memory_bytes=1, leased_most=self.rng.choice((0, 0, 2)),
        )  # fmt: skip
        self.jobs[entry.name] = SimJob(self, entry)
        if self.pool is None:
            self.unknown.add(entry.name)  # the command finds no pool
            return
        self._feed_pool(JobAdded(job=entry))
        self._saved = tuple(self.pool.jobs.values())

    def tell_pool(self, machine: SimMachine, input: FromHost) -> None:
        pool = self.pool
        if pool is not None:
            self.after(0.1, lambda: self._feed_pool(input) if self.pool is pool and machine.host is not None else None)

    def _feed_pool(self, input: PoolInput) -> None:
        if self.pool is None:
            return
        for effect in self.pool.step(input, now=self.clock.now):
            if isinstance(effect, ToHost):
                self._check_told(effect, self.pool)
                self.after(0.1, lambda effect=effect: self.machines[effect.host].on_assignment(effect.message))  # type: ignore[misc]
        self.pool.check()

    def kill_pool(self) -> None:
        self.pool = None

    def start_pool(self) -> None:
        if self.pool is None and not self.pool_dies_for_good:
            self.pool = MachinePool(self._saved)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        machine = self.rng.choice(list(self.machines.values()))
        job = self.rng.choice(list(self.jobs.values()))
        match self.rng.choice(("own", "own", "own", "seat", "seat", "machine", "host", "pool", "end", "both")):
            case "own":
                job.lose_own_node()
            case "both":  # two jobs lose a node at once
                for each in self.jobs.values():
                    each.lose_own_node()
            case "seat" if job.seats:
                self.rng.choice(job.seats).end()
            case "machine":
                machine.die()
                self._lose_host(machine)
            case "host":
                machine.kill_host()
                self._lose_host(machine)
            case "pool":
                self.kill_pool()
                self.after(10.0, self.start_pool)
            case "end" if len([each for each in self.jobs.values() if not each.ended]) > 1 and not job.lacks:
                job.end()
                self._feed_pool(JobRemoved(name=job.name))
                self._saved = tuple(self.pool.jobs.values()) if self.pool is not None else self._saved

    def _lose_host(self, machine: SimMachine) -> None:
        self._feed_pool(HostLost(host=machine.name, reason="closed"))
        self.after(8.0, machine.start_host)

    def _heal(self) -> None:
        self.start_pool()
        for machine in self.machines.values():
            machine.start_host()
        self.clock.after(1.0, lambda: None)

    # --- checkers ----------------------------------------------------------------------------------------------------

    def check_seat(self, agent: SimAgent) -> None:
        self.seats += 1
        machine = agent.machine
        if machine.owner is not agent:
            fail("lease", f"{agent.job.name} has a rank on {machine.name} without its lease")
        others = [other.job.name for other in machine.agents.values() if other.seated and other is not agent]
        if others:
            fail("lease", f"{agent.job.name} and {others} have ranks on {machine.name}")
        parked = [other for other in machine.agents.values() if other is not agent]
        needed = sum(other.job.entry.memory_bytes for other in parked) + agent.job.entry.memory_bytes
        if needed > machine.memory_bytes:
            fail("memory", f"{machine.name} has {machine.memory_bytes}, and its trainers need {needed}")

    def check_refused(self, agent: SimAgent) -> None:
        """Checks that a refused agent leaves by itself: its job must not count on it until somebody else ends it."""
        if agent.alive:
            fail("lease", f"{agent.job.name} was refused {agent.machine.name} and stays")

    def _check_told(self, told: ToHost, pool: MachinePool) -> None:
        """A machine that a job has is told of all jobs that fit: when the lease ends, the pool may be dead."""
        host, names = pool.hosts[told.host], {job.name for job in told.message.jobs}
        if host.leased_to and host.memory_bytes >= len(pool.jobs) and names != set(pool.jobs):
            fail("offered", f"{host.host} is leased and told only of {sorted(names)}")

    def _check_offered(self) -> None:
        for machine in self.machines.values():
            owner = machine.owner
            if owner is not None and not owner.seated and self.clock.now - machine.held_since > KEPT_S:
                fail("offered", f"{machine.name} is leased to {owner.job.name}, which gives it no rank")
        free = [machine for machine in self.machines.values() if machine.owner is None]
        for job in self.jobs.values():
            could = [machine.name for machine in free if self._could_serve(machine, job)]
            if job.lacks > 0 and not job.ended and could:
                fail("offered", f"{job.name} lacks {job.lacks} nodes, and {could} are free")

    def _could_serve(self, machine: SimMachine, job: SimJob) -> bool:
        """A machine that has heard of the job. Without a pool it knows only what it was told; where memory is short,
        the pool may have chosen other jobs for it."""
        if job.entry.leased_most and len(job.seats) >= job.entry.leased_most:
            return False
        return machine.known is not None and any(known.name == job.name for known in machine.known.jobs)


def run_pool_seed(seed: int) -> tuple[str | None, int]:
    """What a checker objected to, if one did, and how many ranks began on machines of the pool."""
    world = PoolWorld(seed)
    try:
        world.run()
    except (Violation, AssertionError) as violation:
        return f"seed {seed}: {violation}", world.seats
    return None, world.seats


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

    def assign(hosts: Sequence[MachineState], jobs: Sequence[PoolJob]) -> dict[str, tuple[str, ...]]:
        return real(hosts, jobs) | {host.host: (host.leased_to,) for host in hosts if host.leased_to}

    patch.set(pool_core, "assign", assign)


def memory_ignored(patch: Patch) -> None:
    real = pool._park

    def park(job: PoolJob, hosts: list[pool._FreeHost]) -> None:
        for host in hosts:
            host.left_bytes = 1 << 40
        real(job, hosts)

    patch.set(pool, "_park", park)
    patch.set(pool_core.MachinePool, "check", lambda self: None)


MUTATIONS: dict[str, Callable[[Patch], None]] = {
    "plan taken before the lease": plan_taken_before_the_lease,
    "refused agent stays": refused_agent_stays,
    "lease kept when not needed": lease_kept_when_not_needed,
    "end of a lease not seen": end_of_a_lease_not_seen,
    "leased machine told of its job only": leased_machine_told_of_its_job_only,
    "memory ignored": memory_ignored,
}
