"""A bit of a snapshot flips, in the memory of its node or on its way to a holder: the holder tells by the checksum.
What is damaged is never gone on from, and the run ends as undisturbed.

A gate holds all ranks in the step after the one whose snapshot is hit, until the holder has refused it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gated_job import EVERY_STEP, NOISE, SMALL, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import differences
from deadpool.protocol.causes import Refusal
from deadpool_lab.workload.run import SCRIPT

HIT = 3  # the step after which the snapshot is taken
GATE = HIT + 1
STEPS = GATE + 6
LAYOUT = "fsdp2"
WORDS = ["--layout", LAYOUT, "--steps", str(STEPS), *SMALL, *NOISE]


@pytest.fixture
def make_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., GatedJob]:
    def make(what: str) -> GatedJob:
        faults = (f"flip={what} rank=1 step={HIT}",)
        settings = {"nodes": 2, "spares": 1, "slots": 4, "drills": True, "faults": faults, **EVERY_STEP}
        checked = JobConfig(**settings).checked()
        return GatedJob(checked, LAYOUT, f"wait@{GATE}:0", tmp_path / "job", fork_server, arguments=WORDS)

    return make


def run(gated: GatedJob, folder: Path, during: Callable[[], None]) -> None:
    """At the gate the node is lost whose snapshot was hit: all go on from what its holder has."""

    def act(_: object) -> None:
        gated.await_gate(GATE)
        gated.trial.await_event("push_failed")
        during()
        gated.kill_node_at_gate("n1", GATE, committed=False)

    results = gated.trial.run(act)
    reference = run_script_unprotected(SCRIPT, WORDS, 2, folder / "reference")
    assert differences(reference, results) == []


def refusals(gated: GatedJob) -> list[dict[str, Any]]:
    return [each for each in gated.events("push_failed") if (each["rank"], each["step"]) == (1, GATE)]


def is_missed(gated: GatedJob) -> bool:
    return any((each["rank"], each["step"]) == (1, GATE) for each in gated.events("capture_missed"))


def assert_found(gated: GatedJob) -> None:
    (injected,) = gated.events("injected")
    assert (injected["rank"], injected["step"]) == (1, HIT)
    assert {(each["node"], each["refusal"]) for each in refusals(gated)} == {("n1", Refusal.DAMAGED.value)}
    assert gated.events("corruption_found") == [] and gated.events("quarantined") == [], "no device has erred"


def test_bit_of_the_arena_flips_and_the_version_never_counts(make_job, tmp_path):
    gated = make_job("arena")
    run(gated, tmp_path, lambda: gated.trial.await_true(lambda: is_missed(gated), "the version to be missed"))
    assert_found(gated)
    assert is_missed(gated) and gated.events("planned")[-1]["step"] < GATE


def test_bit_flips_on_the_wire_and_the_copy_is_sent_again(make_job, tmp_path):
    gated = make_job("wire")
    run(gated, tmp_path, lambda: gated.await_committed(GATE))
    assert_found(gated)
    assert len(refusals(gated)) == 1 and not is_missed(gated)
    assert gated.events("planned")[-1]["step"] == GATE, "what was sent again is gone on from"
