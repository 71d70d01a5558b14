"""How many slots ranks get by default: more where versions lack one, and no more than the node's memory allows."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from deadpool_lab.chaos.surroundings.health_files import HealthFiles

PATIENT = {"node_timeout_s": 600.0}  # an agent that stands still is not lost
LONG = 7
"""A step that three slots do not last for while nothing is committed."""


@pytest.mark.thorough
def test_slots_grow_where_versions_lack_one(make_gated_job, run_and_compare):
    """While the agent of n1 stands still nothing is committed: the rank on n0 misses versions, and gets further slots.
    Afterwards every version is captured again, and the loss of n0 costs no completed step."""
    gated = make_gated_job("ddp", acts=f"wait@1:1 wait@{LONG}:1", **PATIENT)

    def during() -> None:
        gated.await_gate(1)
        gated.await_committed(1)
        agent = gated.trial.job.nodes["n1"].pid
        os.kill(agent, signal.SIGSTOP)
        gated.open_gate(1)
        gated.await_gate(LONG)
        gated.trial.await_true(lambda: (gated.status()["slots"] or {}).get("most", 0) > 3, "more than three slots")
        os.kill(agent, signal.SIGCONT)
        gated.await_committed(LONG)
        gated.trial.job.kill_node("n0")
        gated.open_gate(LONG)

    run_and_compare(gated, during)
    assert gated.events("planned")[-1]["step"] == LONG, "no completed step was lost"


def test_no_slots_are_added_where_memory_is_short(make_gated_job, run_and_compare, tmp_path: Path):
    """The nodes' memory is what files say: nothing is left. Two slots are what a job needs to go on at all."""
    memory = HealthFiles(tmp_path / "machines")
    for node in ("n0", "n1", "n2"):
        memory.make_well(node)
        memory.leave_memory(node, 0.01)
    gated = make_gated_job("ddp", acts="wait@6:1", health_root=memory.pattern)

    def during() -> None:
        gated.await_gate(6)
        gated.await_committed(6)
        gated.trial.await_true(lambda: gated.status()["slots"] is not None, "a report of slots")
        slots = gated.status()["slots"]
        assert (slots["least"], slots["most"], slots["at_most"], slots["limit"]) == (2, 2, 2, "memory")
        gated.trial.job.kill_node("n0")
        gated.open_gate(6)

    run_and_compare(gated, during)
    assert gated.events("planned")[-1]["step"] == 6
    assert gated.events("arena_full") == []
