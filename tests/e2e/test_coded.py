"""Snapshots are kept as parity: any nodes of a group that the scheme allows may be lost, bit for bit."""

from __future__ import annotations

import itertools

import pytest
from stage import LOADING
from test_damage import damage_copies
from test_drain_rpc import drain

from deadpool.cli.job_client import ask


@pytest.mark.parametrize(
    ("layout", "victim"),
    [
        ("fsdp2", 1),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in (("fsdp2", 0), ("fsdp2", 2), ("ddp", 1))),
    ],
)
def test_any_node_of_a_group_killed(make_stage, play, layout, victim):
    stage = make_stage(layout, scene=f"wait@4:{victim} wait@7:0", nodes=3, protect="rs(2,1)")

    def during():
        stage.await_gate(4)
        stage.trial.await_event("rehearsed")
        stage.kill_node_at_gate(f"n{victim}", 4)
        stage.await_gate(7)
        stage.trial.await_true(lambda: stage.status()["protected"], "parities made anew")
        stage.open_gate(7)

    results = play(stage, during)
    assert stage.seats()[victim] == "n3"
    assert results.steps_done_again() <= 1
    assert stage.events("protected")[-1]["t"] > stage.events("go")[-1]["t"]


@pytest.mark.thorough
@pytest.mark.parametrize("victims", list(itertools.combinations(range(4), 2)))
def test_any_two_nodes_of_a_group_killed_at_once(make_stage, play, victims):
    stage = make_stage(scene="wait@4:0", nodes=4, spares=2, protect="rs(2,2)")

    def during():
        stage.await_gate(4)
        stage.await_committed(4)
        stage.kill_nodes_at_once(f"n{victim}" for victim in victims)
        stage.open_gate(4)

    results = play(stage, during)
    assert {stage.seats()[victim] for victim in victims} == {"n4", "n5"}
    assert results.steps_done_again() <= 1


@pytest.mark.thorough
def test_newcomer_killed_while_it_rebuilds(make_stage, play):
    stage = make_stage(scene=f"wait@4:1 wait@{LOADING}:1", nodes=3, spares=2, protect="rs(2,1)")

    def during():
        stage.kill_node_at_gate("n1", 4)
        stage.await_gate(LOADING)
        stage.trial.job.kill_node(stage.seats()[1])
        stage.open_gate(LOADING)

    play(stage, during)
    assert len(stage.events("fault")) == 2


@pytest.mark.thorough
def test_damaged_snapshot_of_another_member_the_second_parity_makes_up_for_it(make_stage, play):
    stage = make_stage(scene="wait@4:1", nodes=4, protect="rs(2,2)")

    def during():
        stage.await_gate(4)
        stage.await_committed(4)
        assert 4 in damage_copies(stage.trial.job.nodes["n2"].pid, rank=2)
        stage.kill_node_at_gate("n1", 4)

    play(stage, during)
    assert "damaged" in stage.events("source_failed")[0]["reason"]
    assert stage.events("copy_damaged")


@pytest.mark.thorough
def test_node_is_drained(make_stage, play):
    stage = make_stage(scene="wait@4:1 asked@4:0 asked@4:1 asked@4:2 wait@7:0", nodes=3, protect="rs(2,1)")

    def during():
        stage.await_gate(4)
        stage.trial.await_event("rehearsed")
        drain(stage, "n1")
        stage.open_gate(4)
        stage.trial.await_event("left")
        stage.open_gate(7)

    results = play(stage, during)
    assert stage.seats()[1] == "n3" and results.steps_done_again() == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "after"), [("copies=1", "rs(2,1)"), ("rs(2,1)", "copies=1")])
def test_scheme_is_changed_while_the_job_runs(make_stage, play, before, after):
    stage = make_stage(scene="wait@2:1 asked@2:0 asked@2:1 asked@2:2 wait@5:1", nodes=3, protect=before)

    def during():
        stage.await_gate(2)
        stage.trial.await_event("protected")
        assert ask(stage.trial.job.run_dir, "protect", scheme=after)["scheme"] == after
        stage.open_gate(2)
        stage.trial.await_event("go", count=2)
        stage.kill_node_at_gate("n1", 5)

    results = play(stage, during)
    assert stage.events("scheme")[0]["scheme"] == after
    assert stage.events("reconfiguration") and results.steps_done_again() <= 1
