"""Coded snapshots on an unknown cluster: TLS, several ranks per node, replicas, silent nodes, takeovers."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from gated_job import LOADING


def lose_node_at_gate(gated: Any, node: str, gate: int = 4) -> None:
    gated.kill_node_at_gate(node, gate)


@pytest.mark.thorough
def test_contributions_and_rebuilds_are_encrypted(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1", nodes=3, protect="rs(2,1)", tls="ephemeral")
    run_and_compare(gated, lambda: lose_node_at_gate(gated, "n1"))
    assert gated.seats()[1] == "n3"


@pytest.mark.thorough
def test_two_ranks_per_node(make_gated_job, run_and_compare):
    """Each has a group of its own, and both are rebuilt."""
    gated = make_gated_job(acts="wait@4:2", nodes=3, nproc_per_node=2, protect="rs(2,1)")
    run_and_compare(gated, lambda: lose_node_at_gate(gated, "n1"))
    assert gated.seats()[1] == "n3"


@pytest.mark.thorough
@pytest.mark.parametrize("victim", range(4))
def test_replicas_of_shards(make_gated_job, run_and_compare, victim):
    """Every shard has a replica on another node, and only the record is coded."""
    gated = make_gated_job("hsdp", acts=f"wait@4:{victim}", nodes=4, protect="rs(3,1)")
    ranks: list[dict[str, Any]] = []

    def during():
        gated.await_gate(4)
        ranks.extend(gated.await_rank_figures())
        lose_node_at_gate(gated, f"n{victim}")

    run_and_compare(gated, during)
    assert all(rank["wire_bytes_per_step"] < rank["replica_bytes"] / 2 for rank in ranks)
    assert gated.seats()[victim] == "n4"


@pytest.mark.thorough
def test_source_falls_silent_while_a_rank_is_rebuilt(make_gated_job, run_and_compare):
    """No connection ends: the newcomer waits for its blocks until the node counts as lost."""
    gated = make_gated_job(acts=f"wait@4:1 wait@{LOADING}:1", nodes=4, spares=2, protect="rs(2,2)")

    def during():
        lose_node_at_gate(gated, "n1")
        gated.trial.await_event("planned", count=2)
        os.killpg(gated.trial.job.nodes["n2"].pid, signal.SIGSTOP)
        gated.trial.await_event("fault", count=2)
        gated.open_gate(LOADING)

    run_and_compare(gated, during)
    assert {event["node"] for event in gated.events("fault")} == {"n1", "n2"}
    assert set(gated.seats()) == {"n0", "n3", "n4", "n5"}


@pytest.mark.thorough
def test_coordinator_killed_while_parities_are_made_then_a_node(make_gated_job, run_and_compare):
    """The one that takes over learns from the nodes which parities are whole."""
    gated = make_gated_job(acts="wait@3:1 wait@5:1", nodes=3, protect="rs(2,1)")

    def during():
        gated.await_gate(3)
        gated.trial.await_event("rehearsed")
        coordinator = gated.trial.job.coordinator
        gated.open_gate(3)  # versions 4 and 5 are captured and sent meanwhile
        os.kill(coordinator.pid, signal.SIGKILL)
        gated.trial.await_event("took_over")
        lose_node_at_gate(gated, "n1", 5)

    results = run_and_compare(gated, during)
    assert gated.seats()[1] == "n3"
    assert results.steps_done_again() <= 1


@pytest.mark.thorough
def test_coordinator_killed_while_a_rank_is_rebuilt(make_gated_job, run_and_compare):
    gated = make_gated_job(acts=f"wait@4:1 wait@{LOADING}:1", nodes=3, protect="rs(2,1)")

    def during():
        lose_node_at_gate(gated, "n1")
        gated.await_gate(LOADING)
        os.kill(gated.trial.job.coordinator.pid, signal.SIGKILL)
        gated.trial.await_event("took_over")
        gated.open_gate(LOADING)

    run_and_compare(gated, during)
    assert gated.seats()[1] == "n3"
