"""Faults that come again: of a node, of everything; and what is left when there is no way to go on."""

from __future__ import annotations

import pytest
from test_damage import damage_copies

from deadpool.errors import JobFailed
from deadpool.snapshot.record.salvage_reader import read_folder


def test_node_whose_trainer_dies_again_is_quarantined(make_stage, play):
    stage = make_stage("plain", scene="wait@3:1 wait@5:1 wait@7:0", quarantine_after=2)

    def during():
        stage.kill_trainer_at_gate(3)
        stage.await_gate(5)
        stage.trial.await_event("rehearsed")
        stage.kill_trainer_at_gate(5)
        stage.await_gate(7)
        bad = next(node for node in stage.status()["nodes"] if node["node"] == "n1")
        assert (bad["role"], bad["quarantined"]) == ("spare", stage.events("quarantined")[0]["reason"])
        stage.open_gate(7)

    play(stage, during)
    assert stage.seats() == ["n0", "n2"]


@pytest.mark.thorough
def test_two_neighbours_killed_at_once_with_two_holders(make_stage, play):
    """A node and the one that holds its copies: there is a second holder."""
    stage = make_stage("plain", scene="wait@4:1", nodes=3, spares=2, holders=2)

    def during():
        stage.await_gate(4)
        stage.await_committed(4)
        stage.kill_nodes_at_once(["n0", "n1"])
        stage.open_gate(4)

    play(stage, during)
    assert sorted(stage.seats()) == ["n2", "n3", "n4"]


def test_node_and_its_holder_killed_at_once_what_is_left_is_kept(make_stage):
    stage = make_stage("plain", scene="durable@2:0 wait@4:1", nodes=3, spares=2)

    def during(trial):
        stage.await_gate(4)
        stage.await_committed(4)
        trial.await_true(lambda: stage.status()["durable"] is not None, "the durable checkpoint")
        stage.kill_nodes_at_once(["n0", "n1"])
        stage.open_gate(4)

    with pytest.raises(JobFailed) as failure:
        stage.trial.run(during)
    (no_plan,) = stage.events("no_plan")
    assert len(no_plan["ranks"]) == 1, "of two neighbours in a ring of three, one has its copies at the third"
    (salvaged,) = stage.events("salvaged")
    kept = read_folder(salvaged["folder"])
    assert sorted(kept) == sorted({0, 1, 2} - set(no_plan["ranks"]))
    assert all(rank.step == 4 and rank.tensors and not rank.missing for rank in kept.values())
    assert "restart from the durable checkpoint after 2 steps: /checkpoints/2" in str(failure.value)


def test_own_snapshot_damaged_its_holder_gives_another(make_stage, play):
    stage = make_stage(scene="wait@4:1", spares=0)

    def during():
        stage.await_gate(4)
        stage.await_committed(4)
        assert 4 in damage_copies(stage.trial.job.nodes["n1"].pid, rank=1, behind_bytes=4096)
        stage.kill_trainer_at_gate(4)

    play(stage, during)
    (damaged,) = stage.events("copy_damaged")
    assert (damaged["node"], damaged["rank"], damaged["step"]) == ("n1", 1, 4)


@pytest.mark.thorough
def test_only_held_copy_damaged_an_older_version_serves_or_it_is_said(make_stage):
    """Of three kept versions the newest is damaged everywhere but where it was captured."""
    stage = make_stage(scene="wait@4:1", spares=1)

    def during(trial):
        stage.await_gate(4)
        stage.await_committed(4)
        damage_copies(stage.trial.job.nodes["n0"].pid, rank=1)
        stage.kill_node_at_gate("n1", 4)

    with pytest.raises(JobFailed, match="is lost for rank 1"):
        stage.trial.run(during)
    assert stage.events("copy_damaged") and len(stage.events("fault")) < 4, "it is not tried again and again"


@pytest.mark.thorough
def test_rank_that_dies_in_every_attempt(make_stage):
    stage = make_stage("plain", scene="die@4:1", spares=0, quarantine_after=0)
    with pytest.raises(JobFailed, match=r"no progress: step [34] was begun again 5 times"):
        stage.trial.run()
    (report,) = stage.events("no_progress")
    assert report["step"] in (3, 4), "4, if its copies were complete when the rank first died there"
    assert (report["ranks"], report["nodes"]) == ([1], ["n1"])
    assert stage.events("salvaged"), "what there is is kept all the same"
