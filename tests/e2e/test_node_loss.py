"""A node dies by SIGKILL, agent and trainers together, and a spare takes its ranks."""

from __future__ import annotations

import pytest
from stage import LOADING

SHARD_BYTES = 250_000  # at least, of a version: what one rank alone has
RECORD_BYTES = 25_000  # at most, of a version, frames included: what travels where replicas have the rest


def assert_figures(stage, layout):
    """Replicated bytes do not travel, unique ones do."""
    for rank in stage.await_rank_figures():
        sent, other = rank["wire_bytes_per_step"], 1 - rank["rank"]
        assert list(rank["wire_bytes"]) == [f"n{other}"]
        if layout == "ddp":
            assert list(rank["peers"]) == [other]
            assert rank["replica_bytes"] > SHARD_BYTES and rank["unique_bytes"] == 0 and sent < RECORD_BYTES
        else:
            assert list(rank["peers"]) == [] and rank["replica_bytes"] == 0
            assert sent > rank["unique_bytes"] + rank["record_bytes"] > SHARD_BYTES


@pytest.mark.parametrize(
    ("layout", "victim"),
    [("ddp", 0), *(pytest.param(layout, 1, marks=pytest.mark.thorough) for layout in ("fsdp2", "plain"))],
)
def test_node_killed_in_mid_step(make_stage, play, layout, victim):
    stage = make_stage(layout, scene=f"wait@4:{victim}")

    def during():
        stage.await_gate(4)
        stage.trial.await_event("rehearsed")
        stage.await_committed(4)
        if layout == "ddp":
            assert stage.await_bytes_pushed() <= 5 * RECORD_BYTES
        else:
            stage.await_bytes_pushed(at_least=4 * SHARD_BYTES)
        assert_figures(stage, layout)
        stage.kill_node_at_gate(f"n{victim}", 4)

    results = play(stage, during)
    assert stage.seats()[victim] == "n2"
    assert results.steps_done_again() <= 1


@pytest.mark.thorough
def test_two_nodes_killed_one_after_the_other(make_stage, play):
    stage = make_stage(scene="wait@3:1 wait@6:0", spares=2)

    def during():
        stage.kill_node_at_gate("n1", 3)
        stage.kill_node_at_gate("n0", 6)

    play(stage, during)
    assert sorted(stage.seats()) == ["n2", "n3"]


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "per_node"), [("fsdp2", 1), ("3d", 2)])
def test_two_nodes_killed_at_once(make_stage, play, layout, per_node):
    """Neighbours hold each other's copies; these two are none."""
    stage = make_stage(layout, scene="wait@4:1", nodes=4, nproc_per_node=per_node, spares=2)

    def during():
        stage.await_gate(4)
        stage.await_committed(4)
        stage.kill_nodes_at_once(["n0", "n2"])
        stage.open_gate(4)

    play(stage, during)
    assert sorted(stage.seats()) == ["n1", "n3", "n4", "n5"]


def test_newcomer_killed_while_it_takes_over(make_stage, play):
    """It loads its state: until then nobody goes on, and it cannot be done with that before it is killed."""
    stage = make_stage(scene=f"wait@4:1 wait@{LOADING}:1", spares=2)

    def during():
        stage.kill_node_at_gate("n1", 4)
        stage.await_gate(LOADING)
        stage.trial.job.kill_node(stage.seats()[1])
        stage.open_gate(LOADING)

    play(stage, during)
    assert len(stage.events("fault")) == 2


@pytest.mark.thorough
def test_node_that_carries_two_ranks(make_stage, play):
    stage = make_stage(scene="wait@4:1", nproc_per_node=2)
    play(stage, lambda: stage.kill_node_at_gate("n0", 4))
    assert stage.seats() == ["n2", "n1"]


def test_loss_in_the_very_first_step(make_stage, play):
    stage = make_stage("plain", scene="wait@0:1")
    play(stage, lambda: stage.kill_node_at_gate("n1", 0, committed=False))
    assert len(stage.events("fault")) == 1


@pytest.mark.thorough
def test_loss_before_the_first_snapshot(make_stage, play):
    stage = make_stage("plain", scene="wait@-1:1")
    play(stage, lambda: stage.kill_node_at_gate("n1", -1, committed=False))
    assert stage.events("planned")[-1]["resume"] is None


@pytest.mark.thorough
def test_spare_lost_then_node_lost_then_a_node_joins(make_stage, play):
    stage = make_stage(scene="wait@4:1")

    def during():
        stage.trial.await_event("rehearsed")
        stage.trial.job.kill_node("n2")
        stage.trial.await_event("spare_lost")
        stage.kill_node_at_gate("n1", 4)
        stage.trial.await_event("awaiting_spare")
        stage.trial.job.add_node("n9", spare=True)

    play(stage, during)
    assert stage.seats() == ["n0", "n9"]


@pytest.mark.thorough
def test_copies_lie_in_another_rack_before_and_after_a_loss(make_stage, play, tmp_path):
    topology = tmp_path / "topology.toml"
    topology.write_text('[racks]\nleft = ["n0", "n1"]\nright = ["n2", "n3"]\n')
    stage = make_stage("plain", scene="wait@4:2 wait@6:0", nodes=3, topology=str(topology))

    def holders():
        return {node["node"]: list(node["holders"]) for node in stage.status()["nodes"] if node["role"] == "active"}

    def during():
        stage.await_gate(4)
        assert holders() == {"n0": ["n2"], "n1": ["n2"], "n2": ["n1"]}
        stage.kill_node_at_gate("n2", 4)
        stage.await_gate(6)
        assert holders() == {"n0": ["n3"], "n1": ["n3"], "n3": ["n1"]}
        stage.open_gate(6)

    play(stage, during)
    assert stage.events("copies_in_own_rack") == []
