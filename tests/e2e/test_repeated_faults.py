"""Faults that come again: of a node, of everything; and what is left when there is no way to go on."""

from __future__ import annotations

import pytest
from test_damage import damage_copies

from deadpool.errors import JobFailed
from deadpool.snapshot.record.salvage_reader import read_folder


def test_node_whose_trainer_dies_again_is_quarantined(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", acts="wait@3:1 wait@5:1 wait@7:0", quarantine_after=2)

    def during():
        gated.kill_trainer_at_gate(3)
        gated.await_gate(5)
        gated.trial.await_event("rehearsed")
        gated.kill_trainer_at_gate(5)
        gated.await_gate(7)
        bad = next(node for node in gated.status()["nodes"] if node["node"] == "n1")
        assert (bad["role"], bad["quarantined"]) == ("spare", gated.events("quarantined")[0]["reason"])
        gated.open_gate(7)

    run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n2"]


@pytest.mark.thorough
def test_two_neighbours_killed_at_once_with_two_holders(make_gated_job, run_and_compare):
    """A node and the one that holds its copies: there is a second holder."""
    gated = make_gated_job("plain", acts="wait@4:1", nodes=3, spares=2, holders=2)

    def during():
        gated.await_gate(4)
        gated.await_committed(4)
        gated.kill_nodes_at_once(["n0", "n1"])
        gated.open_gate(4)

    run_and_compare(gated, during)
    assert sorted(gated.seats()) == ["n2", "n3", "n4"]


def test_node_and_its_holder_killed_at_once_what_is_left_is_kept(make_gated_job):
    gated = make_gated_job("plain", acts="durable@2:0 wait@4:1", nodes=3, spares=2)

    def during(trial):
        gated.await_gate(4)
        gated.await_committed(4)
        trial.await_true(lambda: gated.status()["durable"] is not None, "the durable checkpoint")
        gated.kill_nodes_at_once(["n0", "n1"])
        gated.open_gate(4)

    with pytest.raises(JobFailed) as failure:
        gated.trial.run(during)
    (no_plan,) = gated.events("no_plan")
    assert len(no_plan["ranks"]) == 1, "of two neighbours in a ring of three, one has its copies at the third"
    (salvaged,) = gated.events("salvaged")
    kept = read_folder(salvaged["folder"])
    assert sorted(kept) == sorted({0, 1, 2} - set(no_plan["ranks"]))
    assert all(rank.step == 4 and rank.tensors and not rank.missing for rank in kept.values())
    assert "restart from the durable checkpoint after 2 steps: /checkpoints/2" in str(failure.value)


def test_own_snapshot_damaged_its_holder_gives_another(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1", spares=0)

    def during():
        gated.await_gate(4)
        gated.await_committed(4)
        assert 4 in damage_copies(gated.trial.job.nodes["n1"].pid, rank=1, behind_bytes=4096)
        gated.kill_trainer_at_gate(4)

    run_and_compare(gated, during)
    (damaged,) = gated.events("copy_damaged")
    assert (damaged["node"], damaged["rank"], damaged["step"]) == ("n1", 1, 4)


@pytest.mark.thorough
def test_only_held_copy_damaged_an_older_version_serves_or_it_is_said(make_gated_job):
    """Of three kept versions the newest is damaged everywhere but where it was captured."""
    gated = make_gated_job(acts="wait@4:1", spares=1)

    def during(trial):
        gated.await_gate(4)
        gated.await_committed(4)
        damage_copies(gated.trial.job.nodes["n0"].pid, rank=1)
        gated.kill_node_at_gate("n1", 4)

    with pytest.raises(JobFailed, match="is lost for rank 1"):
        gated.trial.run(during)
    assert gated.events("copy_damaged") and len(gated.events("fault")) < 4, "it is not tried again and again"


@pytest.mark.thorough
def test_rank_that_dies_in_every_attempt(make_gated_job):
    gated = make_gated_job("plain", acts="die@4:1", spares=0, quarantine_after=0)
    with pytest.raises(JobFailed, match=r"no progress: step [34] was begun again 5 times"):
        gated.trial.run()
    (report,) = gated.events("no_progress")
    assert report["step"] in (3, 4), "4, if its copies were complete when the rank first died there"
    assert (report["ranks"], report["nodes"]) == ([1], ["n1"])
    assert gated.events("salvaged"), "what there is is kept all the same"
