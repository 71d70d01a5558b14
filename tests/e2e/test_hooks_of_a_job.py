"""A job whose operator is told of a recovery by a command, while another command hangs and a webhook is dead."""

from __future__ import annotations

import json
import socket

import pytest


@pytest.mark.thorough
def test_recovery_is_told_and_dead_hooks_are_not_in_its_way(make_gated_job, run_and_compare, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = listener.getsockname()[1]
    told = tmp_path / "told"
    gated = make_gated_job(
        "ddp",
        acts="wait@4:1",
        on_event=(f"recovered,completed=cat >> {told}; echo >> {told}", "fault=sleep 1000", "fault=exit 7"),
        webhook=(f"fault=http://127.0.0.1:{dead}/SECRET",),
    )
    run_and_compare(gated, lambda: gated.kill_node_at_gate("n1", 4))

    recovered, completed = (json.loads(line) for line in told.read_text().splitlines())
    assert recovered["event"] == "recovered" and recovered["cause"] == "fault-1"
    assert completed["event"] == "completed" and completed["run_dir"] == str(gated.trial.job.run_dir.path.resolve())
    failures = {event["hook"]: event["reason"] for event in gated.events("hook_failed")}
    assert failures["command exit"] == "it ended with code 7"
    assert "SECRET" not in gated.trial.job.run_dir.events.read_text()
