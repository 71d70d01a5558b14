"""A job loses a node while unauthenticated peers and a confused member are at all its ports: nothing of it shows."""

from __future__ import annotations

import pytest
from pest import Pest, ports_of

ACTS = {"garbage", "silent_crowd", "drip", "replay", "oversized", "truncated", "old_generation"}


@pytest.mark.thorough
@pytest.mark.parametrize("tls", ["off", "ephemeral"])
def test_node_lost_among_unauthenticated_peers(make_stage, play, tls):
    if tls != "off":
        pytest.importorskip("cryptography")
    stage = make_stage(scene="wait@2:0 wait@5:0", tls=tls)

    def during() -> None:
        stage.await_gate(2)
        job = stage.trial.job
        assert len(ports_of(job)) == 1 + 2 * 3, "the coordinator's, and two of each agent"
        pest = Pest(job, job.run_dir.secret_file.read_bytes())
        pest.start()
        try:
            stage.trial.await_true(lambda: set(pest.done) >= (ACTS if tls == "off" else {"garbage"}), "pestering")
            stage.open_gate(2)
            stage.kill_node_at_gate("n1", 5)
            stage.trial.await_event("protected")
            stage.trial.job.wait(stage.trial.deadline_s)
        finally:
            pest.stop()

    play(stage, during)
    (fault,) = stage.events("fault")
    assert fault["node"] == "n1"
    refused = stage.events("connection_refused")
    assert sum(event["count"] for event in refused) > 2 * len(refused), "told now and then, not each time"
    (bandwidth,) = stage.events("bandwidth")
    assert bandwidth["bytes_pushed"] > 0 and all(rate > 0 for rate in bandwidth["push_gbps"].values())
