"""Snapshots are kept as parity: any nodes of a group that the scheme allows may be lost, bit for bit."""

from __future__ import annotations

import itertools

import pytest
from gated_job import LOADING
from test_damage import damage_copies
from test_drain_rpc import drain

from deadpool.cli.job_client import ask


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "victim"), [("fsdp2", 1), ("fsdp2", 0), ("fsdp2", 2), ("ddp", 1)])
def test_any_node_of_a_group_killed(make_gated_job, run_and_compare, layout, victim):
    gated = make_gated_job(layout, acts=f"wait@4:{victim} wait@7:0", nodes=3, protect="rs(2,1)")

    def during():
        gated.await_gate(4)
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate(f"n{victim}", 4)
        gated.await_gate(7)
        gated.trial.await_true(lambda: gated.status()["protected"], "parities made anew")
        gated.open_gate(7)

    results = run_and_compare(gated, during)
    assert gated.seats()[victim] == "n3"
    assert results.steps_done_again() <= 1
    assert gated.events("protected")[-1]["t"] > gated.events("go")[-1]["t"]


@pytest.mark.thorough
@pytest.mark.parametrize("victims", list(itertools.combinations(range(4), 2)))
def test_any_two_nodes_of_a_group_killed_at_once(make_gated_job, run_and_compare, victims):
    gated = make_gated_job(acts="wait@4:0", nodes=4, spares=2, protect="rs(2,2)")

    def during():
        gated.await_gate(4)
        gated.await_committed(4)
        gated.kill_nodes_at_once(f"n{victim}" for victim in victims)
        gated.open_gate(4)

    results = run_and_compare(gated, during)
    assert {gated.seats()[victim] for victim in victims} == {"n4", "n5"}
    assert results.steps_done_again() <= 1


@pytest.mark.thorough
def test_newcomer_killed_while_it_rebuilds(make_gated_job, run_and_compare):
    gated = make_gated_job(acts=f"wait@4:1 wait@{LOADING}:1", nodes=3, spares=2, protect="rs(2,1)")

    def during():
        gated.kill_node_at_gate("n1", 4)
        gated.await_gate(LOADING)
        gated.trial.job.kill_node(gated.seats()[1])
        gated.open_gate(LOADING)

    run_and_compare(gated, during)
    assert len(gated.events("fault")) == 2


@pytest.mark.thorough
def test_damaged_snapshot_of_another_member_the_second_parity_makes_up_for_it(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1", nodes=4, protect="rs(2,2)")

    def during():
        gated.await_gate(4)
        gated.await_committed(4)
        assert 4 in damage_copies(gated.trial.job.nodes["n2"].pid, rank=2)
        gated.kill_node_at_gate("n1", 4)

    run_and_compare(gated, during)
    assert "damaged" in gated.events("source_failed")[0]["reason"]
    assert gated.events("copy_damaged")


@pytest.mark.thorough
def test_node_is_drained(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1 asked@4:0 asked@4:1 asked@4:2 wait@7:0", nodes=3, protect="rs(2,1)")

    def during():
        gated.await_gate(4)
        gated.trial.await_event("rehearsed")
        drain(gated, "n1")
        gated.open_gate(4)
        gated.trial.await_event("left")
        gated.open_gate(7)

    results = run_and_compare(gated, during)
    assert gated.seats()[1] == "n3" and results.steps_done_again() == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "after"), [("copies=1", "rs(2,1)"), ("rs(2,1)", "copies=1")])
def test_scheme_is_changed_while_the_job_runs(make_gated_job, run_and_compare, before, after):
    gated = make_gated_job(acts="wait@2:1 asked@2:0 asked@2:1 asked@2:2 wait@5:1", nodes=3, protect=before)

    def during():
        gated.await_gate(2)
        gated.trial.await_event("protected")
        assert ask(gated.trial.job.run_dir, "protect", scheme=after)["scheme"] == after
        gated.open_gate(2)
        gated.trial.await_event("go", count=2)
        gated.kill_node_at_gate("n1", 5)

    results = run_and_compare(gated, during)
    assert gated.events("scheme")[0]["scheme"] == after
    assert gated.events("reconfiguration") and results.steps_done_again() <= 1
