"""Nodes that leave on purpose: a spare takes their ranks between two steps, and nothing is computed again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage, run_script_unprotected

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.demo.results import differences
from deadpool.errors import ConfigError
from deadpool_lab.workload.harness import LIMIT_S

SLOW_SCRIPT = Path(__file__).with_name("slow_script.py")
ASKED = "asked@3:0 asked@3:1"


def drain(stage: Stage, node: str) -> None:
    """Until the spare is ready for it: these jobs are too short to wait for that while they train."""
    ask(stage.trial.job.run_dir, "drain", node=node)
    stage.await_drain()


def assert_left_well(stage: Stage, node: str) -> None:
    stage.trial.await_event("left")
    assert [event["node"] for event in stage.events("left")] == [node]
    assert stage.trial.job.nodes[node].wait(LIMIT_S) == 0


@pytest.mark.parametrize("layout", ["fsdp2", pytest.param("ddp", marks=pytest.mark.thorough)])
def test_node_drained_in_mid_training(make_stage, play, layout):
    stage = make_stage(layout, scene=f"wait@3:1 {ASKED} wait@6:0")

    def during():
        stage.await_gate(3)
        stage.trial.await_event("rehearsed")
        drain(stage, "n1")
        stage.open_gate(3)
        stage.await_gate(6)
        assert_left_well(stage, "n1")
        stage.open_gate(6)

    results = play(stage, during)
    assert results.steps_done_again() == 0
    assert stage.seats() == ["n0", "n2"]
    # The spare had rehearsed rank 0: a process that has begun the script as one rank is never another.
    assert stage.trainers() == {0: "n0.0", 1: "n2.1"}
    (handover,) = stage.events("handover")
    assert (handover["node"], handover["step"]) == ("n1", 6)
    assert stage.events("planned")[-1]["lost_steps"] == 0 and stage.events("fault") == []


@pytest.mark.thorough
def test_another_node_killed_while_one_is_drained(make_stage, play):
    """The killed one held the copies of the one that leaves, and the one that leaves holds those of the killed one."""
    stage = make_stage(scene=f"wait@3:1 {ASKED} wait@7:0", spares=2)

    def during():
        stage.await_gate(3)
        stage.await_committed(3)
        drain(stage, "n1")
        stage.open_gate(3)
        stage.trial.await_event("handover")
        stage.trial.job.kill_node("n0")
        stage.await_gate(7)
        assert_left_well(stage, "n1")
        stage.open_gate(7)

    play(stage, during)
    assert sorted(stage.seats()) == ["n2", "n3"]
    assert [event["node"] for event in stage.events("fault")] == ["n0"]


@pytest.mark.thorough
def test_last_spare_told_to_end_then_another_joins_and_takes_the_ranks(make_stage, play):
    stage = make_stage("plain", scene=f"wait@3:1 {ASKED} wait@6:0")

    def during():
        stage.await_gate(3)
        stage.trial.job.nodes["n2"].terminate()
        assert_left_well(stage, "n2")
        assert stage.status()["spares"] == 0 and len(stage.events("no_spare")) == 1
        with pytest.raises(ConfigError, match="no spare to take the ranks of node n1"):
            drain(stage, "n1")
        with pytest.raises(ConfigError, match="no node 'n7': known are n0, n1"):
            drain(stage, "n7")
        stage.trial.job.add_node("n9", spare=True)
        stage.trial.await_true(lambda: stage.status()["spares"] == 1, "the spare")
        drain(stage, "n1")
        stage.open_gate(3)
        stage.await_gate(6)
        stage.trial.await_event("left", count=2)
        stage.open_gate(6)

    results = play(stage, during)
    assert results.steps_done_again() == 0
    assert stage.seats() == ["n0", "n9"]


def test_agent_told_to_end_hands_over_its_ranks(make_stage, play):
    stage = make_stage("plain", scene=f"wait@3:1 {ASKED} wait@6:0")

    def during():
        stage.await_gate(3)
        stage.trial.job.nodes["n1"].terminate()
        stage.await_drain()
        stage.open_gate(3)
        stage.await_gate(6)
        assert_left_well(stage, "n1")
        stage.open_gate(6)

    assert play(stage, during).steps_done_again() == 0
    assert stage.seats() == ["n0", "n2"]


@pytest.mark.thorough
def test_slow_node_is_named_and_replaced(tmp_path, fork_server):
    """The job cannot pass step 200 before the order is there. It takes a few more steps to leave at a boundary."""
    config = JobConfig(nodes=3, spares=1, node_timeout_s=3.0, **EVERY_STEP).checked()
    stage = Stage(config, "", "wait@200:1", tmp_path / "job", fork_server, SLOW_SCRIPT, [])

    def is_ordered() -> bool:
        return (stage.status()["drain"] or {}).get("stage") == "stopping" or bool(stage.events("left"))

    def during(_):
        stage.trial.await_event("straggler")
        (told,) = stage.status()["stragglers"]
        assert told["node"] == "n1" and told["factor"] > 2 and told["own_s"] > 0.1 > told["usual_s"]
        run_dir = stage.trial.job.run_dir.path
        command = [sys.executable, "-m", "deadpool.cli.main", "node", "replace", str(run_dir), "--straggler"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as replacing:
            stage.trial.await_true(is_ordered, "the order to leave")
            stage.open_gate(200)
            told_then, _ = replacing.communicate(timeout=LIMIT_S)
        assert replacing.returncode == 0 and told_then.startswith("node n1 worked"), told_then
        assert_left_well(stage, "n1")

    results = stage.trial.run(during)
    assert differences(run_script_unprotected(SLOW_SCRIPT, [], 3, tmp_path / "reference"), results) == []
    assert results.steps_done_again() == 0
    assert stage.seats() == ["n0", "n3", "n2"]
    assert {event["node"] for event in stage.events("straggler")} == {"n1"}, "who waits for it is not named"
