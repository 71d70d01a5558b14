"""Nodes that leave on purpose: a spare takes their ranks between two steps, and nothing is computed again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences
from deadpool.errors import ConfigError
from deadpool_lab.workload.run import LIMIT_S

SLOW_SCRIPT = Path(__file__).with_name("slow_script.py")
ASKED = "asked@3:0 asked@3:1"


def drain(gated: GatedJob, node: str) -> None:
    """Until the spare is ready for it: these jobs are too short to wait for that while they train."""
    ask(gated.trial.job.run_dir, "drain", node=node)
    gated.await_drain()


def assert_left_well(gated: GatedJob, node: str) -> None:
    gated.trial.await_event("left")
    assert [event["node"] for event in gated.events("left")] == [node]
    assert gated.trial.job.nodes[node].wait(LIMIT_S) == 0


@pytest.mark.parametrize("layout", ["fsdp2", pytest.param("ddp", marks=pytest.mark.thorough)])
def test_node_drained_in_mid_training(make_gated_job, run_and_compare, layout):
    gated = make_gated_job(layout, acts=f"wait@3:1 {ASKED} wait@6:0")

    def during():
        gated.await_gate(3)
        gated.trial.await_event("rehearsed")
        drain(gated, "n1")
        gated.open_gate(3)
        gated.await_gate(6)
        assert_left_well(gated, "n1")
        gated.open_gate(6)

    results = run_and_compare(gated, during)
    assert results.steps_done_again() == 0
    assert gated.seats() == ["n0", "n2"]
    # The spare had rehearsed rank 0: a process that has begun the script as one rank is never another.
    assert gated.trainers() == {0: "n0.0", 1: "n2.1"}
    (handover,) = gated.events("handover")
    assert (handover["node"], handover["step"]) == ("n1", 6)
    assert gated.events("planned")[-1]["lost_steps"] == 0 and gated.events("fault") == []


@pytest.mark.thorough
def test_another_node_killed_while_one_is_drained(make_gated_job, run_and_compare):
    """The killed one held the copies of the one that leaves, and the one that leaves holds those of the killed one."""
    gated = make_gated_job(acts=f"wait@3:1 {ASKED} wait@7:0", spares=2)

    def during():
        gated.await_gate(3)
        gated.await_committed(3)
        drain(gated, "n1")
        gated.open_gate(3)
        gated.trial.await_event("handover")
        gated.trial.job.kill_node("n0")
        gated.await_gate(7)
        assert_left_well(gated, "n1")
        gated.open_gate(7)

    run_and_compare(gated, during)
    assert sorted(gated.seats()) == ["n2", "n3"]
    assert [event["node"] for event in gated.events("fault")] == ["n0"]


@pytest.mark.thorough
def test_last_spare_told_to_end_then_another_joins_and_takes_the_ranks(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", acts=f"wait@3:1 {ASKED} wait@6:0")

    def during():
        gated.await_gate(3)
        gated.trial.job.nodes["n2"].terminate()
        assert_left_well(gated, "n2")
        assert gated.status()["spares"] == 0 and len(gated.events("no_spare")) == 1
        with pytest.raises(ConfigError, match="no spare to take the ranks of node n1"):
            drain(gated, "n1")
        with pytest.raises(ConfigError, match="no node 'n7': known are n0, n1"):
            drain(gated, "n7")
        gated.trial.job.add_node("n9", spare=True)
        gated.trial.await_true(lambda: gated.status()["spares"] == 1, "the spare")
        drain(gated, "n1")
        gated.open_gate(3)
        gated.await_gate(6)
        gated.trial.await_event("left", count=2)
        gated.open_gate(6)

    results = run_and_compare(gated, during)
    assert results.steps_done_again() == 0
    assert gated.seats() == ["n0", "n9"]


def test_agent_told_to_end_hands_over_its_ranks(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", acts=f"wait@3:1 {ASKED} wait@6:0")

    def during():
        gated.await_gate(3)
        gated.trial.job.nodes["n1"].terminate()
        gated.await_drain()
        gated.open_gate(3)
        gated.await_gate(6)
        assert_left_well(gated, "n1")
        gated.open_gate(6)

    assert run_and_compare(gated, during).steps_done_again() == 0
    assert gated.seats() == ["n0", "n2"]


@pytest.mark.thorough
def test_slow_node_is_named_and_replaced(tmp_path, fork_server):
    """The job cannot pass step 200 before the order is there. It takes a few more steps to leave at a boundary."""
    config = JobConfig(nodes=3, spares=1, node_timeout_s=3.0, **EVERY_STEP).checked()
    gated = GatedJob(config, "", "wait@200:1", tmp_path / "job", fork_server, SLOW_SCRIPT, [])

    def is_ordered() -> bool:
        return (gated.status()["drain"] or {}).get("stage") == "stopping" or bool(gated.events("left"))

    def during(_):
        gated.trial.await_event("straggler")
        (told,) = gated.status()["stragglers"]
        assert told["node"] == "n1" and told["factor"] > 2 and told["own_s"] > 0.1 > told["usual_s"]
        run_dir = gated.trial.job.run_dir.path
        command = [sys.executable, "-m", "deadpool.cli.main", "node", "replace", str(run_dir), "--straggler"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as replacing:
            gated.trial.await_true(is_ordered, "the order to leave")
            gated.open_gate(200)
            told_then, _ = replacing.communicate(timeout=LIMIT_S)
        assert replacing.returncode == 0 and told_then.startswith("node n1 worked"), told_then
        assert_left_well(gated, "n1")

    results = gated.trial.run(during)
    assert differences(run_script_unprotected(SLOW_SCRIPT, [], 3, tmp_path / "reference"), results) == []
    assert results.steps_done_again() == 0
    assert gated.seats() == ["n0", "n3", "n2"]
    assert {event["node"] for event in gated.events("straggler")} == {"n1"}, "who waits for it is not named"
