"""A state that is large enough to be loaded while it arrives, with real processes and kill -9, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected
from test_damage import damage_copies

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences

SCRIPT = Path(__file__).with_name("heavy_script.py")
GATE = 3
ARGUMENTS = ["--steps", "5", "--tensors", "24"]
BALLAST_BYTES = 24 << 22


def make_gated_job(tmp_path, fork_server, **config):
    settings = JobConfig(**({"nodes": 2, "spares": 1, **EVERY_STEP} | config)).checked()
    return GatedJob(settings, "plain", f"wait@{GATE}:0", tmp_path / "job", fork_server, SCRIPT, ARGUMENTS)


def run_to_the_end(gated, tmp_path, during):
    results = gated.trial.run(lambda _: during())
    reference = run_script_unprotected(SCRIPT, ARGUMENTS, gated.config.nodes, tmp_path / "reference")
    assert differences(reference, results) == []
    return {event["rank"]: event for event in gated.events("restored")}


@pytest.mark.thorough
def test_newcomer_loads_while_its_snapshot_arrives(tmp_path, fork_server):
    gated = make_gated_job(tmp_path, fork_server)

    def during():
        gated.await_gate(GATE)
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n0", GATE)

    restored = run_to_the_end(gated, tmp_path, during)
    assert 0 < restored[0]["early_bytes"] <= BALLAST_BYTES + (1 << 20)
    assert restored[1]["early_bytes"] == 0  # from its own slot


@pytest.mark.thorough
def test_first_source_is_damaged_and_what_was_loaded_from_it_is_loaded_again(tmp_path, fork_server):
    gated = make_gated_job(tmp_path, fork_server, nodes=3, holders=2)

    def during():
        gated.await_gate(GATE)
        gated.trial.await_event("rehearsed")
        gated.await_committed(GATE)  # one that arrives later would not be damaged
        first = next(node for node in gated.status()["nodes"] if node["node"] in ("n1", "n2"))
        damage_copies(gated.trial.job.nodes[first["node"]].pid, rank=0, behind_bytes=BALLAST_BYTES // 2)
        gated.kill_node_at_gate("n0", GATE)

    restored = run_to_the_end(gated, tmp_path, during)
    assert "region 'unique'" in gated.events("source_failed")[0]["reason"]
    assert restored[0]["early_bytes"] > 0
