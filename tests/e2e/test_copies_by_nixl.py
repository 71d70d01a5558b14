"""A job whose copies are read by NIXL: its processes may end, and so may its nodes."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from waiting import wait_until

from deadpool.host.rdma import INSTALL, nixl_build

pytestmark = pytest.mark.skipif(nixl_build() is None, reason=f"nixl is missing: {INSTALL}")
NAME = "deadpool-nixl"


def test_processes_stopped_and_a_node_killed(make_gated_job, run_and_compare):
    gated = make_gated_job("fsdp2", acts="wait@4:1 wait@7:1", transport="nixl")

    def during():
        gated.await_gate(4)
        wait_until(lambda: _nodes(gated, "copies_by_nixl") == {"n0", "n1", "n2"}, "NIXL on all nodes")
        stopped = [process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == NAME]
        assert len(stopped) == 3
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        gated.open_gate(4)
        gated.await_gate(7)
        gated.trial.await_event("rehearsed")
        gated.await_committed(7)
        gated.kill_node_at_gate("n1", 7)

    run_and_compare(gated, during)
    assert gated.seats()[1] == "n2"
    assert _nodes(gated, "copies_by_tcp") >= {"n0"}


def _nodes(gated, what):
    return {event["node"] for event in gated.events(what)}
