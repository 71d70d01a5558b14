"""What of DDP a cut-off step leaves behind, and what its communication hooks keep from step to step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import differences

SCRIPT = Path(__file__).with_name("ddp_script.py")


@pytest.fixture
def make_gated_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., GatedJob]:
    def make(hook: str, acts: str, **config: object) -> GatedJob:
        settings = JobConfig(**{"nodes": 2, "spares": 0, **EVERY_STEP, **config}).checked()
        return GatedJob(settings, "ddp", acts, tmp_path / "job", fork_server, SCRIPT, ["--hook", hook])

    return make


@pytest.mark.parametrize(
    "hook", ["powersgd", *(pytest.param(hook, marks=pytest.mark.thorough) for hook in ("own", "none", "localsgd"))]
)
def test_fault_in_a_microbatch_that_is_not_synchronised(make_gated_job, tmp_path, hook):
    """The survivor has left out its synchronisation, the newcomer comes with all of it."""
    gated = make_gated_job(hook, "wait@5:1")
    results = gated.trial.run(lambda _: gated.kill_trainer_at_gate(5))
    reference = run_script_unprotected(SCRIPT, ["--hook", hook], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert len(gated.events("fault")) == 1
    assert gated.trainers()[0] == "n0.0", "the survivor kept its process"


@pytest.mark.thorough
@pytest.mark.parametrize(("step", "backwards"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)])
def test_static_graph_and_a_fault_before_its_buckets_have_settled(tmp_path, fork_server, step, backwards):
    """A sum over three ranks depends on where in a bucket an element lies."""
    script, arguments = SCRIPT.with_name("static_graph_script.py"), ["--backwards", str(backwards)]
    settings = JobConfig(nodes=3, spares=1, **EVERY_STEP).checked()
    gated = GatedJob(settings, "ddp", f"wait@{step}:1", tmp_path / "job", fork_server, script, arguments)
    results = gated.trial.run(lambda _: gated.kill_node_at_gate("n1", step))
    reference = run_script_unprotected(script, arguments, 3, tmp_path / "reference")
    assert differences(reference, results) == []
    assert not [event for event in gated.events("fault") if "script" in event["reason"]]


def test_forward_pass_that_will_be_done_again_is_cut_off(tmp_path, fork_server):
    """It has no collective that could raise."""
    script = SCRIPT.with_name("long_forward_script.py")
    settings = JobConfig(nodes=2, spares=0, **EVERY_STEP).checked()
    gated = GatedJob(settings, "ddp", "wait@5:1", tmp_path / "job", fork_server, script, [])
    calls = gated.trial.out / "calls-of-rank0"

    def during(_):
        gated.await_gate(5)
        gated.trial.await_true(lambda: "5" in calls.read_text().split(), "the block that waits for the abort")
        gated.kill_trainer_at_gate(5)

    results = gated.trial.run(during)
    reference = run_script_unprotected(script, [], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert gated.trainers()[0] == "n0.0", "the survivor kept its process"
    assert calls.read_text().split().count("5") == 1 + 8, (
        "the block in which the abort came, and all of them when the step was redone"
    )
