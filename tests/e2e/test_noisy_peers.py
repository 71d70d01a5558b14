"""A job loses a node while unauthenticated peers and a confused member are at all its ports: nothing of it shows."""

from __future__ import annotations

import pytest
from noisy_peers import NoisyPeers, ports_of

ACTS = {"garbage", "silent_crowd", "drip", "replay", "oversized", "truncated", "old_generation"}


@pytest.mark.thorough
@pytest.mark.parametrize("tls", ["off", "ephemeral"])
def test_node_lost_among_unauthenticated_peers(make_gated_job, run_and_compare, tls):
    if tls != "off":
        pytest.importorskip("cryptography")
    gated = make_gated_job(acts="wait@2:0 wait@5:0", tls=tls)

    def during() -> None:
        gated.await_gate(2)
        job = gated.trial.job
        assert len(ports_of(job)) == 1 + 2 * 3, "the coordinator's, and two of each agent"
        noise = NoisyPeers(job, job.run_dir.secret_file.read_bytes())
        noise.start()
        try:
            gated.trial.await_true(lambda: set(noise.done) >= (ACTS if tls == "off" else {"garbage"}), "noise")
            gated.open_gate(2)
            gated.kill_node_at_gate("n1", 5)
            gated.trial.await_event("protected")
            gated.trial.job.wait(gated.trial.deadline_s)
        finally:
            noise.stop()

    run_and_compare(gated, during)
    (fault,) = gated.events("fault")
    assert fault["node"] == "n1"
    refused = gated.events("connection_refused")
    assert sum(event["count"] for event in refused) > 2 * len(refused), "told now and then, not each time"
    (bandwidth,) = gated.events("bandwidth")
    assert bandwidth["bytes_pushed"] > 0 and all(rate > 0 for rate in bandwidth["push_gbps"].values())
