"""Counts the seeds until a checker notices a broken rule."""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from deadpool_lab.sim.mutations import BY_NAME, Mutation, Patch
from deadpool_lab.sim.options import Profile
from deadpool_lab.sim.profiles import BY_NAME as PROFILES
from deadpool_lab.sim.run import run_seed


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
