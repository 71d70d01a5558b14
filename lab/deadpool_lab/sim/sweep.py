"""Many seeds over several processes, and the sums of their results; and how many seeds it takes until a checker notices
a broken rule."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from deadpool.protocol.causes import EndCause
from deadpool_lab.sim.faults import ALL
from deadpool_lab.sim.faults.fault import PHASES
from deadpool_lab.sim.mutations import BY_NAME, Mutation, Patch
from deadpool_lab.sim.options import ANYTHING, Profile
from deadpool_lab.sim.profiles import BY_NAME as PROFILES
from deadpool_lab.sim.run import Result, run_seed

BATCH = 10
"""Seeds that a process runs at a time. Garbage is collected after each batch and not in between, which is faster."""


@dataclass(slots=True)
class Summary:
    seeds: int = 0
    violations: list[Result] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind and phase
    steps: int = 0
    events: int = 0
    virtual_s: float = 0.0
    peace_s: float = 0.0  # the longest
    cpu_s: float = 0.0

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.outcomes[_kind_of(result)] += 1
        self.faults.update(result.faults)
        self.steps += result.steps
        self.events += result.events
        self.virtual_s += result.virtual_s
        if result.outcome is EndCause.COMPLETED:
            self.peace_s = max(self.peace_s, result.peace_s)
        if result.violation:
            self.violations.append(result)

    def report(self, elapsed_s: float) -> dict[str, Any]:
        """The report that `--json` writes."""
        hit = self.faults.total()
        return {
            "seeds": self.seeds,
            "violations": [
                {"seed": r.seed, "violation": r.violation, "replay": r.replay}
                for r in sorted(self.violations, key=lambda result: result.seed)
            ],
            "faults": {fault.kind: sum(self._by_phase(fault.kind).values()) for fault in ALL},
            "phases": {fault.kind: self._by_phase(fault.kind) for fault in ALL},
            "outcomes": dict(sorted(self.outcomes.items())),
            "elapsed_s": round(elapsed_s, 3),
            "cpu_s": round(self.cpu_s, 3),
            "seeds_per_s": round(self.seeds / elapsed_s, 2),
            "seeds_per_cpu_s": round(self.seeds / max(self.cpu_s, 1e-9), 2),
            "faults_per_seed": round(hit / max(1, self.seeds), 2),
            "faults_per_s": round(hit / elapsed_s, 1),
            "steps_per_s": round(self.steps / elapsed_s, 1),
            "events_per_s": round(self.events / elapsed_s, 1),
            "virtual_s": round(self.virtual_s, 1),
            "longest_peace_s": round(self.peace_s, 1),
        }

    def _by_phase(self, kind: str) -> dict[str, int]:
        return {phase: self.faults[kind, phase] for phase in PHASES}


def _kind_of(result: Result) -> str:
    """The outcome in a few words that many seeds share."""
    if result.violation:
        return "violation"
    if result.outcome is None:
        return "most of the nodes lost"
    return "no plan: copies lost" if result.outcome is EndCause.COPIES_LOST else result.reason


def sweep(
    first: int, count: int, *, jobs: int, profile: Profile = ANYTHING
) -> Generator[tuple[list[Result], float], None, None]:
    """Yields batches as they are done, with the CPU time of each. Seeds come in order only with one process."""
    batches = [(start, min(BATCH, first + count - start), profile.name) for start in range(first, first + count, BATCH)]
    if jobs <= 1:
        yield from map(run_batch, batches)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_batch, batches)


def run_batch(batch: tuple[int, int, str]) -> tuple[list[Result], float]:
    from deadpool_lab.sim.profiles import BY_NAME

    first, count, profile = batch
    began = time.process_time()
    collecting = gc.isenabled()
    gc.disable()
    try:
        results = [run_seed(seed, profile=BY_NAME[profile]) for seed in range(first, first + count)]
    finally:
        if collecting:
            gc.enable()
        gc.collect()
    return results, time.process_time() - began


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    mutation: str
    profile: str
    seeds: int  # that were run
    violation: str | None  # None: no checker objected


def catch(name: str, limit: int | None = None) -> Catch:
    mutation = BY_NAME[name]
    limit = limit or mutation.seeds
    profile = PROFILES[mutation.profile]
    with Patch() as patch:
        mutation.apply(patch)
        for seed in range(limit):
            violation = run_seed(seed, profile=profile).violation
            if violation is not None and not _fails_anyway(seed, profile, patch, mutation):
                return Catch(mutation=name, profile=profile.name, seeds=seed + 1, violation=violation)
    return Catch(mutation=name, profile=profile.name, seeds=limit, violation=None)


def _fails_anyway(seed: int, profile: Profile, patch: Patch, mutation: Mutation) -> bool:
    """A seed that fails without the mutation proves nothing about it."""
    patch.undo()
    fails = run_seed(seed, profile=profile).violation is not None
    mutation.apply(patch)
    return fails


def catch_each(mutations: Sequence[Mutation], jobs: int) -> Generator[Catch, None, None]:
    """Yields them as they are done."""
    names = [mutation.name for mutation in mutations]
    if jobs <= 1:
        yield from map(catch, names)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(catch, names)
