"""What leaves a step without a peer being lost, and a peer that is lost without a fault that anybody else can see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import differences
from deadpool_lab.workload.run import LIMIT_S

SCRIPT = Path(__file__).with_name("own_errors_script.py")


@pytest.fixture
def make_gated_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., GatedJob]:
    def make(what: str, acts: str = "", **config: object) -> GatedJob:
        settings = JobConfig(**{"nodes": 2, "spares": 0, **EVERY_STEP, **config}).checked()
        return GatedJob(settings, "plain", acts, tmp_path / "job", fork_server, SCRIPT, ["--what", what])

    return make


@pytest.mark.thorough
def test_end_of_an_epoch_is_the_scripts_own_at_once(make_gated_job, tmp_path):
    """No fence is waited for: that would take ten heartbeats, which are far longer here than the test may last."""
    gated = make_gated_job("stop", node_timeout_s=LIMIT_S)
    results = gated.trial.run()
    reference = run_script_unprotected(SCRIPT, ["--what", "nothing"], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert gated.events("fault") == []


def test_connections_cut_between_processes_that_live(make_gated_job, tmp_path):
    """Both ranks swallow what comes of it. Nobody is lost, so no fence comes: whoever waited for one ends."""
    gated = make_gated_job("cut", acts="wait@4:1")
    results = gated.trial.run(lambda _: gated.open_committed_gate(4))
    reference = run_script_unprotected(SCRIPT, ["--what", "nothing"], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    (told,) = {event["reason"] for event in gated.events("peer_lost")}
    assert told.startswith("a connection to a peer broke before the end of step 4")
    assert gated.events("planned")[-1]["step"] == 4
