"""Nodes that look ill, in real jobs: their agents read files that the test writes in place of the kernel's."""

from __future__ import annotations

import re
import time

import pytest

from deadpool_lab.chaos.surroundings.health_files import CORRECTABLE_ERRORS, UNCORRECTABLE_ERRORS, HealthFiles
from deadpool_lab.workload.harness import LIMIT_S

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


def guarded(stage, node):
    return [e for e in stage.events("protection") if e.get("node") == node and e["change"] == "guarded"]


@pytest.mark.thorough
def test_node_with_ecc_storms_is_guarded_and_no_step_is_lost(make_stage, play, health):
    """Its ranks get a further holder between two steps, a spare rehearses them, and when it dies they go there."""
    settings = {"nodes": 3, "protect": "auto", "protect_dwell_s": 20.0, "health_root": health.pattern}
    stage = make_stage(scene=f"wait@3:1 {ASKED} wait@6:0", **settings)

    def storm_until(ready):
        """Storms are a rate, so they go by the clock."""
        deadline = time.monotonic() + LIMIT_S
        while not ready():
            assert time.monotonic() < deadline, stage.events("health")
            health.count("n1", CORRECTABLE_ERRORS, STORM)
            time.sleep(STORM_EVERY_S)

    def during():
        stage.await_gate(3)
        stage.await_committed(3)
        storm_until(lambda: guarded(stage, "n1"))
        stage.open_gate(3)
        stage.trial.await_event("reconfiguration")
        stage.await_gate(6)
        stage.trial.await_true(lambda: len(holders(stage, "n1")) == 2, "a further holder")
        storm_until(lambda: rehearsed(stage, "n3") == [1])  # on a busy machine the guard would end before
        stage.await_committed(6)
        stage.trial.job.kill_node("n1")
        stage.open_gate(6)

    play(stage, during)
    assert stage.seats() == ["n0", "n3", "n2"]
    (event,) = guarded(stage, "n1")
    said = r"n1 has \d+ correctable ECC storms in 20 s: its ranks are held once more"
    assert re.match(said, event["reason"]), event["reason"]
    (reconfiguration,) = stage.events("reconfiguration")
    planned = [e for e in stage.events("planned") if e["cause"] == reconfiguration["cause"]]
    assert [plan["lost_steps"] for plan in planned] == [0]
    assert [e["node"] for e in stage.events("fault")] == ["n1"]


def test_ill_node_is_evicted_before_it_dies(make_stage, play, health):
    stage = make_stage(
        scene="wait@3:1 asked@3:0 asked@3:1 wait@6:0",
        evict_ill=True,
        health_root=health.pattern,
        nodes=2,
        spares=1,
        protect_dwell_s=20.0,
    )

    def during():
        stage.await_gate(3)
        stage.await_committed(3)
        health.count("n1", UNCORRECTABLE_ERRORS, 1)
        stage.await_drain()
        stage.open_gate(3)
        stage.await_gate(6)
        stage.trial.await_event("left")
        stage.open_gate(6)

    results = play(stage, during)
    assert results.steps_done_again() == 0 and stage.events("fault") == []
    assert stage.seats() == ["n0", "n2"]
    (eviction,) = stage.events("eviction")
    assert eviction["node"] == "n1" and "memory errors that ECC could not correct" in eviction["reason"]
    assert [e["node"] for e in stage.events("left")] == ["n1"]


def chosen(stage):
    return [e["change"] for e in stage.events("protection") if e["change"].startswith(("rs(", "copies="))]


@pytest.mark.thorough
def test_memory_runs_out_and_snapshots_are_coded(make_stage, play, health):
    """Between two steps, and when that node dies its ranks are rebuilt from parity."""
    settings = {"nodes": 3, "protect_at_most": "rs(2,1)", "protect_dwell_s": 20.0, "health_root": health.pattern}
    stage = make_stage(scene=f"wait@3:1 {ASKED} wait@6:1", **settings)

    def during():
        stage.await_gate(3)
        stage.await_committed(3)
        health.leave_memory("n1", 4)
        stage.trial.await_true(lambda: chosen(stage) == ["rs(2,1)"], "the choice of parity")
        stage.open_gate(3)
        stage.trial.await_event("go", count=2)
        stage.kill_node_at_gate("n1", 6)

    results = play(stage, during)
    assert stage.seats() == ["n0", "n3", "n2"] and results.steps_done_again() <= 1
    (change,) = stage.events("protection")
    assert change["reason"].startswith("n1 has only 6% of its memory left: snapshots are coded as rs(2,1)")
    (reconfiguration,) = stage.events("reconfiguration")
    planned = [e for e in stage.events("planned") if e["cause"] == reconfiguration["cause"]]
    assert [plan["lost_steps"] for plan in planned] == [0]


def holders(stage, node):
    return next(each["holders"] for each in stage.status()["nodes"] if each["node"] == node)


def rehearsed(stage, node):
    """The ranks for which trainers of this node are parked."""
    trainers = next(each["trainers"] for each in stage.status()["nodes"] if each["node"] == node)
    return [each["rank"] for each in trainers if each["state"] == "parked"]
