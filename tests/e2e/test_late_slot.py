"""A long step after quick ones: its version had no free slot at its boundary, and is committed while the step lasts."""

from __future__ import annotations

import os
import signal

import pytest

PATIENT = {"node_timeout_s": 600.0, "slots": 3}  # an agent that stands still is not lost, and no slots are added


@pytest.mark.parametrize("layout", ["ddp", pytest.param("fsdp2", marks=pytest.mark.thorough)])
def test_version_of_a_long_step_is_committed_although_no_slot_was_free_when_it_began(
    make_gated_job, run_and_compare, layout
):
    """While the agent of n1 stands still, no copy is stored there, so no version is committed and no slot is freed: the
    ranks run out of slots on their way to the long step, on any machine."""
    gated = make_gated_job(layout, acts="wait@1:1 wait@6:1", **PATIENT)

    def during() -> None:
        gated.await_gate(1)
        gated.await_committed(1)
        agent = gated.trial.job.nodes["n1"].pid
        os.kill(agent, signal.SIGSTOP)
        gated.open_gate(1)
        gated.await_gate(6)
        assert gated.status()["watermark"] < 6
        os.kill(agent, signal.SIGCONT)
        gated.await_committed(6)
        gated.trial.job.kill_node("n0")
        gated.open_gate(6)

    run_and_compare(gated, during)
    assert gated.events("planned")[-1]["step"] == 6, "no completed step was lost"
