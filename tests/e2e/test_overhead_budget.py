"""Snapshots that do not fit into a step: the interval widens, and the job stays protected all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("heavy_script.py")
BUDGET = 0.05  # so much that a few dozen steps have saved up for a copy, also on a busy machine


def make_gated_job(tmp_path, fork_server, steps, acts, budget):
    settings = JobConfig(nodes=2, spares=1, **{**EVERY_STEP, "overhead_budget": budget}).checked()
    return GatedJob(settings, "plain", acts, tmp_path / "job", fork_server, SCRIPT, ["--steps", str(steps)])


def test_copy_does_not_fit_and_a_node_is_killed(tmp_path, fork_server):
    gate, steps = 500, 520
    gated = make_gated_job(tmp_path, fork_server, steps, f"wait@{gate}:1", BUDGET)
    slots = 0

    def during(_):
        nonlocal slots
        gated.await_gate(gate)
        gated.trial.await_event("rehearsed")
        every = interval_in_force(gated, gate)
        gated.trial.await_true(lambda: gated.status()["watermark"] % every == 0, "a version of the interval")
        assert gated.status()["protected"]
        slots = gated.status()["slots"]["most"]
        gated.kill_node_at_gate("n1", gate, committed=False)  # it may be none that is captured

    results = gated.trial.run(during)
    reference = run_script_unprotected(SCRIPT, ["--steps", str(steps)], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert gated.seats() == ["n0", "n2"]
    assert_widened(gated)
    # The protocol's bound, k + (L1 + skew) / T; the interval is such that (slots - 1) k T >= L1 + L2 + skew.
    recovery = gated.trial.recoveries()[0]
    missed = {event["step"] for event in gated.events("capture_missed") if recovery.resume_step < event["step"] <= gate}
    assert recovery.lost_steps <= (slots + len(missed)) * interval_in_force(gated, gate)


def interval_in_force(gated, number):
    return [event for event in gated.events("capture_interval") if event["from"] <= number][-1]["every"]


def assert_widened(gated):
    first = gated.events("capture_interval")[0]
    assert first["every"] > 1 and first["from"] > 2 and first["reason"]
    assert [event for event in gated.events("capture_missed") if "would have waited" in event["reason"]]


def test_without_a_budget_no_copy_is_given_up(tmp_path, fork_server):
    """The control: the same job, in which each step waits for its copy."""
    gate = 100
    gated = make_gated_job(tmp_path, fork_server, gate + 1, f"wait@{gate}:1", 0.0)

    def during(_):
        gated.await_gate(gate)
        assert gated.status()["interval"] == {"every": 1, "from": 0, "budget": 0.0, "widened": None}
        gated.open_gate(gate)

    gated.trial.run(during)
    assert gated.events("capture_interval") == []
    assert {event["reason"] for event in gated.events("capture_missed")} <= {"no free slot"}
