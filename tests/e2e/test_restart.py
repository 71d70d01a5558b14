"""Survivors that do not go on in place: fresh processes take their ranks from the memory of their own nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob

from deadpool.config.job_config import JobConfig
from deadpool_lab.workload.run import LIMIT_S


def restarted(gated):
    return sorted(event["rank"] for event in gated.events("trainer_restarts"))


@pytest.mark.parametrize(("layout", "nodes"), [("ddp", 3), pytest.param("fsdp2", 2, marks=pytest.mark.thorough)])
def test_node_killed_and_every_survivor_restarts(make_gated_job, run_and_compare, layout, nodes):
    gated = make_gated_job(layout, acts="wait@4:1", nodes=nodes, in_place="never")
    run_and_compare(gated, lambda: gated.kill_node_at_gate("n1", 4))
    survivors = [rank for rank in range(nodes) if rank != 1]
    assert restarted(gated) == survivors
    assert len(gated.events("fault")) == 1, "their ends are part of the recovery, not further faults"
    restored = {event["rank"]: event for event in gated.events("restored")}
    assert sorted(restored) == list(range(nodes)) and not any(event["kept"] for event in restored.values())
    assert [restored[rank]["trainer"] for rank in survivors] == [f"n{rank}.1" for rank in survivors]


@pytest.mark.thorough
def test_one_trainer_killed_after_the_other(make_gated_job, run_and_compare):
    """Each time the dead one and the survivor are fresh processes, and the next loss finds them protected again."""
    acts = "wait@2:1 wait@4:0 wait@6:1"
    gated = make_gated_job("plain", acts=acts, spares=0, in_place="never")
    run_and_compare(gated, lambda: [gated.kill_trainer_at_gate(step) for step in (2, 4, 6)])
    assert len(gated.events("fault")) == 3
    assert restarted(gated) == [0, 0, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_torch_in_which_groups_cannot_be_rebuilt(tmp_path, strange_fork_server, run_and_compare, layout):
    """Every rank is a fresh process after each of two faults, and the losses are those of an undisturbed run: nothing
    private of torch is needed for that."""
    config = JobConfig(nodes=2, spares=1, **EVERY_STEP).checked()
    gated = GatedJob(config, layout, "wait@4:1 wait@6:0", tmp_path, strange_fork_server)

    def during():
        gated.await_gate(4)
        gated.await_committed(3)
        gated.kill_node_at_gate("n1", 4)
        gated.kill_trainer_at_gate(6)

    run_and_compare(gated, during)
    assert restarted(gated) == [0, 1]
    restored = gated.events("restored")
    assert sorted(event["rank"] for event in restored) == [0, 0, 1, 1] and not any(event["kept"] for event in restored)
    (told,) = gated.events("unknown_torch")
    assert "FakeProcessGroup has no _create_internal" in told["reason"]
    assert not gated.events("rehearsed")


@pytest.mark.thorough
def test_torch_that_cannot_be_used_ends_the_job_with_a_sentence(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "STRANGE_TORCH": "refuse_stores"}
    command = [
        sys.executable,
        "-m",
        "deadpool.cli.main",
        "run",
        "--preload",
        "strange_torch",
        "--run-dir",
        str(tmp_path),
    ]
    script = Path(__file__).with_name("unknown_torch.py")
    done = subprocess.run(
        [*command, str(script)], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, env=environment
    )
    assert done.returncode != 0
    told = done.stdout.decode() + done.stderr.decode()
    assert (
        "DeadPool cannot work with torch 2.99.0: TypeError: " in told and "Another version of torch is needed" in told
    )
    assert "Traceback" not in told


@pytest.mark.thorough
def test_unknown_torch_is_warned_of_once_per_job(tmp_path):
    command = [sys.executable, "-m", "deadpool.cli.main", "run", "--nproc-per-node", "2", "--run-dir", str(tmp_path)]
    script = Path(__file__).with_name("unknown_torch.py")
    done = subprocess.run([*command, str(script)], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout.decode()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    (told,) = (event for event in events if event["what"] == "unknown_torch")
    assert told["rank"] == 0 and "not tested with torch 2.99.0" in told["reason"]
    assert done.stdout.decode().count("not tested with torch 2.99.0") == 1
