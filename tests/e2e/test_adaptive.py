"""Nodes that look ill, in real jobs: their agents read files that the test writes in place of the kernel's."""

from __future__ import annotations

import re
import time

import pytest

from deadpool_lab.chaos.surroundings.health_files import CORRECTABLE_ERRORS, UNCORRECTABLE_ERRORS, HealthFiles
from deadpool_lab.workload.run import LIMIT_S

STORM = 50
STORM_EVERY_S = 2.5
"""More than an agent takes from one look to the next, and than a storm lasts with this dwell time."""
NODES = ("n0", "n1", "n2", "n3", "n4")
ASKED = "asked@3:0 asked@3:1 asked@3:2"


@pytest.fixture
def health(tmp_path):
    files = HealthFiles(tmp_path / "health")
    for node in NODES:
        files.make_well(node)
    return files


def guarded(gated, node):
    return [e for e in gated.events("protection") if e.get("node") == node and e["change"] == "guarded"]


@pytest.mark.thorough
def test_node_with_ecc_storms_is_guarded_and_no_step_is_lost(make_gated_job, run_and_compare, health):
    """Its ranks get a further holder between two steps, a spare rehearses them, and when it dies they go there."""
    settings = {"nodes": 3, "protect": "auto", "protect_dwell_s": 20.0, "health_root": health.pattern}
    gated = make_gated_job(acts=f"wait@3:1 {ASKED} wait@6:0", **settings)

    def storm_until(ready):
        """Storms are a rate, so they go by the clock."""
        deadline = time.monotonic() + LIMIT_S
        while not ready():
            assert time.monotonic() < deadline, gated.events("health")
            health.count("n1", CORRECTABLE_ERRORS, STORM)
            time.sleep(STORM_EVERY_S)

    def during():
        gated.await_gate(3)
        gated.await_committed(3)
        storm_until(lambda: guarded(gated, "n1"))
        gated.open_gate(3)
        gated.trial.await_event("reconfiguration")
        gated.await_gate(6)
        gated.trial.await_true(lambda: len(holders(gated, "n1")) == 2, "a further holder")
        storm_until(lambda: rehearsed(gated, "n3") == [1])  # on a busy machine the guard would end before
        gated.await_committed(6)
        gated.trial.job.kill_node("n1")
        gated.open_gate(6)

    run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n3", "n2"]
    (event,) = guarded(gated, "n1")
    said = r"n1 has \d+ correctable ECC storms in 20 s: its ranks are held once more"
    assert re.match(said, event["reason"]), event["reason"]
    (reconfiguration,) = gated.events("reconfiguration")
    planned = [e for e in gated.events("planned") if e["cause"] == reconfiguration["cause"]]
    assert [plan["lost_steps"] for plan in planned] == [0]
    assert [e["node"] for e in gated.events("fault")] == ["n1"]


@pytest.mark.thorough
def test_ill_node_is_evicted_before_it_dies(make_gated_job, run_and_compare, health):
    gated = make_gated_job(
        acts="wait@3:1 asked@3:0 asked@3:1 wait@6:0",
        evict_ill=True,
        health_root=health.pattern,
        nodes=2,
        spares=1,
        protect_dwell_s=20.0,
    )

    def during():
        gated.await_gate(3)
        gated.await_committed(3)
        health.count("n1", UNCORRECTABLE_ERRORS, 1)
        gated.await_drain()
        gated.open_gate(3)
        gated.await_gate(6)
        gated.trial.await_event("left")
        gated.open_gate(6)

    results = run_and_compare(gated, during)
    assert results.steps_done_again() == 0 and gated.events("fault") == []
    assert gated.seats() == ["n0", "n2"]
    (eviction,) = gated.events("eviction")
    assert eviction["node"] == "n1" and "memory errors that ECC could not correct" in eviction["reason"]
    assert [e["node"] for e in gated.events("left")] == ["n1"]


def chosen(gated):
    return [e["change"] for e in gated.events("protection") if e["change"].startswith(("rs(", "copies="))]


@pytest.mark.thorough
def test_memory_runs_out_and_snapshots_are_coded(make_gated_job, run_and_compare, health):
    """Between two steps, and when that node dies its ranks are rebuilt from parity."""
    settings = {"nodes": 3, "protect_at_most": "rs(2,1)", "protect_dwell_s": 20.0, "health_root": health.pattern}
    gated = make_gated_job(acts=f"wait@3:1 {ASKED} wait@6:1", **settings)

    def during():
        gated.await_gate(3)
        gated.await_committed(3)
        health.leave_memory("n1", 4)
        gated.trial.await_true(lambda: chosen(gated) == ["rs(2,1)"], "the choice of parity")
        gated.open_gate(3)
        gated.trial.await_event("go", count=2)
        gated.kill_node_at_gate("n1", 6)

    results = run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n3", "n2"] and results.steps_done_again() <= 1
    (change,) = gated.events("protection")
    assert change["reason"].startswith("n1 has only 6% of its memory left: snapshots are coded as rs(2,1)")
    (reconfiguration,) = gated.events("reconfiguration")
    planned = [e for e in gated.events("planned") if e["cause"] == reconfiguration["cause"]]
    assert [plan["lost_steps"] for plan in planned] == [0]


def holders(gated, node):
    return next(each["holders"] for each in gated.status()["nodes"] if each["node"] == node)


def rehearsed(gated, node):
    """The ranks for which trainers of this node are parked."""
    trainers = next(each["trainers"] for each in gated.status()["nodes"] if each["node"] == node)
    return [each["rank"] for each in trainers if each["state"] == "parked"]
