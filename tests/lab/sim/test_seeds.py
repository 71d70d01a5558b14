"""A few hundred seeds of the simulated world, and its promise that a seed always tells the same story."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deadpool_lab.sim.faults import ALL
from deadpool_lab.sim.faults.fault import PHASES
from deadpool_lab.sim.options import ANYTHING, draw
from deadpool_lab.sim.profiles import BY_NAME, PROFILES
from deadpool_lab.sim.run import run_seed
from deadpool_lab.sim.sweep import Summary, run_batch

BATCH = 20
BATCHES = [*range(2), *(pytest.param(batch, marks=pytest.mark.thorough) for batch in range(2, 8))]


@pytest.mark.parametrize("batch", BATCHES)
def test_seeds_hold(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        result = run_seed(seed)
        assert result.violation is None, f"{result.violation}\n{result.replay}"


@pytest.mark.parametrize("first", [0, pytest.param(5, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("profile", PROFILES[1:], ids=lambda profile: profile.name)
def test_seeds_of_a_profile_hold(profile, first: int) -> None:  # type: ignore[no-untyped-def]
    for seed in range(first, first + 5):
        result = run_seed(seed, profile=profile)
        assert result.violation is None, f"{result.violation}\n{result.replay}"


def test_a_seed_tells_the_same_story_under_any_hash_seed() -> None:
    code = (
        "from deadpool_lab.sim.run import run_seed\n"
        "for seed in (3, 12, 27, 41): print('\\n'.join(run_seed(seed, story=True).story))"
    )
    stories = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(stories) == 1
    assert "machine" in stories.pop()


def test_every_kind_of_fault_is_drawn_by_some_seed() -> None:
    """Those that only a job can meet that may shrink, choose its scheme, end early, audit steps, or have devices that
    err, are drawn by one of these."""
    profiles = (ANYTHING, *(BY_NAME[name] for name in ("shrink", "memory", "ending", "corruption", "judges")))
    options = [draw(seed, profile) for seed in range(200) for profile in profiles]
    drawn = {plan.kind for each in options for plan in each.faults}
    assert drawn == {fault.kind for fault in ALL}


def test_a_kind_draws_the_same_whatever_others_there_are() -> None:
    """So that adding one does not change what older seeds have found."""
    node = next(fault for fault in ALL if fault.kind == "node")
    seed = next(seed for seed in range(100) if node.draw(seed, intensity=1.0, calm_s=20.0))
    assert node.draw(seed, intensity=1.0, calm_s=20.0) == node.draw(seed, intensity=1.0, calm_s=20.0)


def test_the_report_counts_faults_by_kind_and_phase() -> None:
    summary = Summary()
    results, summary.cpu_s = run_batch((0, 10, "anything"))
    for result in results:
        summary.add(result)
    report = summary.report(1.0)
    assert report["seeds"] == 10 and report["violations"] == []
    assert set(report["faults"]) == {fault.kind for fault in ALL}
    assert all(set(phases) == set(PHASES) for phases in report["phases"].values())
    assert sum(report["faults"].values()) == sum(sum(result.faults.values()) for result in results) > 0
