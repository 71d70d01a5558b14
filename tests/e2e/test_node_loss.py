"""A node dies by SIGKILL, agent and trainers together, and a spare takes its ranks."""

from __future__ import annotations

import pytest
from gated_job import LOADING

SHARD_BYTES = 250_000  # at least, of a version: what one rank alone has
RECORD_BYTES = 25_000  # at most, of a version, frames included: what travels where replicas have the rest


def assert_figures(gated, layout):
    """Replicated bytes do not travel, unique ones do."""
    for rank in gated.await_rank_figures():
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
def test_node_killed_in_mid_step(make_gated_job, run_and_compare, layout, victim):
    gated = make_gated_job(layout, acts=f"wait@4:{victim}")

    def during():
        gated.await_gate(4)
        gated.trial.await_event("rehearsed")
        gated.await_committed(4)
        if layout == "ddp":
            assert gated.await_bytes_pushed() <= 5 * RECORD_BYTES
        else:
            gated.await_bytes_pushed(at_least=4 * SHARD_BYTES)
        assert_figures(gated, layout)
        gated.kill_node_at_gate(f"n{victim}", 4)

    results = run_and_compare(gated, during)
    assert gated.seats()[victim] == "n2"
    assert results.steps_done_again() <= 1


@pytest.mark.thorough
def test_two_nodes_killed_one_after_the_other(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@3:1 wait@6:0", spares=2)

    def during():
        gated.kill_node_at_gate("n1", 3)
        gated.kill_node_at_gate("n0", 6)

    run_and_compare(gated, during)
    assert sorted(gated.seats()) == ["n2", "n3"]


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "per_node"), [("fsdp2", 1), ("3d", 2)])
def test_two_nodes_killed_at_once(make_gated_job, run_and_compare, layout, per_node):
    """Neighbours hold each other's copies; these two are none."""
    gated = make_gated_job(layout, acts="wait@4:1", nodes=4, nproc_per_node=per_node, spares=2)

    def during():
        gated.await_gate(4)
        gated.await_committed(4)
        gated.kill_nodes_at_once(["n0", "n2"])
        gated.open_gate(4)

    run_and_compare(gated, during)
    assert sorted(gated.seats()) == ["n1", "n3", "n4", "n5"]


def test_newcomer_killed_while_it_takes_over(make_gated_job, run_and_compare):
    """It loads its state: until then nobody goes on, and it cannot be done with that before it is killed."""
    gated = make_gated_job(acts=f"wait@4:1 wait@{LOADING}:1", spares=2)

    def during():
        gated.kill_node_at_gate("n1", 4)
        gated.await_gate(LOADING)
        gated.trial.job.kill_node(gated.seats()[1])
        gated.open_gate(LOADING)

    run_and_compare(gated, during)
    assert len(gated.events("fault")) == 2


@pytest.mark.thorough
def test_node_that_carries_two_ranks(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1", nproc_per_node=2)
    run_and_compare(gated, lambda: gated.kill_node_at_gate("n0", 4))
    assert gated.seats() == ["n2", "n1"]


def test_loss_in_the_very_first_step(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", acts="wait@0:1")
    run_and_compare(gated, lambda: gated.kill_node_at_gate("n1", 0, committed=False))
    assert len(gated.events("fault")) == 1


@pytest.mark.thorough
def test_loss_before_the_first_snapshot(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", acts="wait@-1:1")
    run_and_compare(gated, lambda: gated.kill_node_at_gate("n1", -1, committed=False))
    assert gated.events("planned")[-1]["resume"] is None


@pytest.mark.thorough
def test_spare_lost_then_node_lost_then_a_node_joins(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1")

    def during():
        gated.trial.await_event("rehearsed")
        gated.trial.job.kill_node("n2")
        gated.trial.await_event("spare_lost")
        gated.kill_node_at_gate("n1", 4)
        gated.trial.await_event("awaiting_spare")
        gated.trial.job.add_node("n9", spare=True)

    run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n9"]


@pytest.mark.thorough
def test_copies_lie_in_another_rack_before_and_after_a_loss(make_gated_job, run_and_compare, tmp_path):
    topology = tmp_path / "topology.toml"
    topology.write_text('[racks]\nleft = ["n0", "n1"]\nright = ["n2", "n3"]\n')
    gated = make_gated_job("plain", acts="wait@4:2 wait@6:0", nodes=3, topology=str(topology))

    def holders():
        return {node["node"]: list(node["holders"]) for node in gated.status()["nodes"] if node["role"] == "active"}

    def during():
        gated.await_gate(4)
        assert holders() == {"n0": ["n2"], "n1": ["n2"], "n2": ["n1"]}
        gated.kill_node_at_gate("n2", 4)
        gated.await_gate(6)
        assert holders() == {"n0": ["n3"], "n1": ["n3"], "n3": ["n1"]}
        gated.open_gate(6)

    run_and_compare(gated, during)
    assert gated.events("copies_in_own_rack") == []
