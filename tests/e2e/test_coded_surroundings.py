"""Coded snapshots on an unknown cluster: TLS, several ranks per node, replicas, silent nodes, takeovers."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from stage import LOADING


def lose_node_at_gate(stage: Any, node: str, gate: int = 4) -> None:
    stage.kill_node_at_gate(node, gate)


@pytest.mark.thorough
def test_contributions_and_rebuilds_are_encrypted(make_stage, play):
    stage = make_stage(scene="wait@4:1", nodes=3, protect="rs(2,1)", tls="ephemeral")
    play(stage, lambda: lose_node_at_gate(stage, "n1"))
    assert stage.seats()[1] == "n3"


@pytest.mark.thorough
def test_two_ranks_per_node(make_stage, play):
    """Each has a group of its own, and both are rebuilt."""
    stage = make_stage(scene="wait@4:2", nodes=3, nproc_per_node=2, protect="rs(2,1)")
    play(stage, lambda: lose_node_at_gate(stage, "n1"))
    assert stage.seats()[1] == "n3"


@pytest.mark.thorough
@pytest.mark.parametrize("victim", range(4))
def test_replicas_of_shards(make_stage, play, victim):
    """Every shard has a replica on another node, and only the record is coded."""
    stage = make_stage("hsdp", scene=f"wait@4:{victim}", nodes=4, protect="rs(3,1)")
    ranks: list[dict[str, Any]] = []

    def during():
        stage.await_gate(4)
        ranks.extend(stage.await_rank_figures())
        lose_node_at_gate(stage, f"n{victim}")

    play(stage, during)
    assert all(rank["wire_bytes_per_step"] < rank["replica_bytes"] / 2 for rank in ranks)
    assert stage.seats()[victim] == "n4"


@pytest.mark.thorough
def test_source_falls_silent_while_a_rank_is_rebuilt(make_stage, play):
    """No connection ends: the newcomer waits for its blocks until the node counts as lost."""
    stage = make_stage(scene=f"wait@4:1 wait@{LOADING}:1", nodes=4, spares=2, protect="rs(2,2)")

    def during():
        lose_node_at_gate(stage, "n1")
        stage.trial.await_event("planned", count=2)
        os.killpg(stage.trial.job.nodes["n2"].pid, signal.SIGSTOP)
        stage.trial.await_event("fault", count=2)
        stage.open_gate(LOADING)

    play(stage, during)
    assert {event["node"] for event in stage.events("fault")} == {"n1", "n2"}
    assert set(stage.seats()) == {"n0", "n3", "n4", "n5"}


@pytest.mark.thorough
def test_coordinator_killed_while_parities_are_made_then_a_node(make_stage, play):
    """The one that takes over learns from the nodes which parities are whole."""
    stage = make_stage(scene="wait@3:1 wait@5:1", nodes=3, protect="rs(2,1)")

    def during():
        stage.await_gate(3)
        stage.trial.await_event("rehearsed")
        coordinator = stage.trial.job.coordinator
        stage.open_gate(3)  # versions 4 and 5 are captured and sent meanwhile
        os.kill(coordinator.pid, signal.SIGKILL)
        stage.trial.await_event("took_over")
        lose_node_at_gate(stage, "n1", 5)

    results = play(stage, during)
    assert stage.seats()[1] == "n3"
    assert results.steps_done_again() <= 1


@pytest.mark.thorough
def test_coordinator_killed_while_a_rank_is_rebuilt(make_stage, play):
    stage = make_stage(scene=f"wait@4:1 wait@{LOADING}:1", nodes=3, protect="rs(2,1)")

    def during():
        lose_node_at_gate(stage, "n1")
        stage.await_gate(LOADING)
        os.kill(stage.trial.job.coordinator.pid, signal.SIGKILL)
        stage.trial.await_event("took_over")
        stage.open_gate(LOADING)

    play(stage, during)
    assert stage.seats()[1] == "n3"
