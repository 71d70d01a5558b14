"""A step is computed twice: a bit that flipped in one rank's gradient, before all ranks summed it, is found, its rank
is named, and the run ends as undisturbed.

Gates hold the ranks until the audit is ordered, and behind the step until what has to follow has followed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, NOISE, SMALL, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import differences
from deadpool_lab.workload.run import SCRIPT

EVERY = 6
ORDERED = 3  # the gate at which ranks wait for the order: then the step before version 6 is audited
AUDITED = EVERY - 1
STEPS = EVERY + 5

MakeJob = Callable[..., GatedJob]


def arguments(layout: str) -> list[str]:
    return ["--layout", layout, "--steps", str(STEPS), *SMALL, *NOISE]


@pytest.fixture
def make_job(tmp_path: Path, fork_server: SharedForkServer) -> MakeJob:
    def make(layout: str, *faults: str, **config: object) -> GatedJob:
        settings = {"nodes": 2, "spares": 1, "slots": 4, "drills": True, "faults": faults, "audit_every": EVERY}
        checked = JobConfig(**settings | EVERY_STEP | config).checked()
        acts = " ".join(f"wait@{gate}:0" for gate in (ORDERED, EVERY, EVERY + 1, EVERY + 2))
        return GatedJob(checked, layout, acts, tmp_path / "job", fork_server, arguments=arguments(layout))

    return make


def pass_gates(gated: GatedJob, *events: str) -> None:
    """At each gate behind the audited step ranks wait for one of these events."""
    for gate, event in zip((ORDERED, EVERY, EVERY + 1, EVERY + 2), ("step_audit_ordered", *events), strict=True):
        gated.await_gate(gate)
        gated.trial.await_event(event)
        gated.open_gate(gate)


def is_undisturbed(gated: GatedJob, folder: Path, *events: str) -> None:
    results = gated.trial.run(lambda _: pass_gates(gated, *events))
    reference = run_script_unprotected(SCRIPT, arguments(gated.layout), 2, folder / "reference")
    assert differences(reference, results) == []
    assert {event["kind"] for event in gated.events("fault")} == {"audit"}
    assert gated.seats() == ["n0", "n1"] and gated.events("quarantined") == []
    assert gated.events("step_audit_passed")[0]["step"] == EVERY


FOUND = ("fault", "step_audit_differs", "step_audit_passed")


@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_gradient_that_was_wrong_before_it_was_summed(make_job, tmp_path, layout):
    gated = make_job(layout, f"flip=gradient rank=1 step={AUDITED}")
    is_undisturbed(gated, tmp_path, *FOUND)
    (differs,) = gated.events("step_audit_differs")
    assert (differs["ranks"], differs["stage"]) == ([1], "gradients"), "rank 0 only got its numbers"
    assert "before it was reduced" in differs["part"]
    (found,) = gated.events("corruption_found")
    assert (found["node"], found["ranks"], found["errors"]) == ("n1", [1], 1)
    assert len(gated.events("fault")) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["parameter", "moment"])
def test_shard_without_a_replica_that_was_updated_wrongly(make_job, tmp_path, what):
    gated = make_job("fsdp2", f"flip={what} rank=1 step={AUDITED}")
    is_undisturbed(gated, tmp_path, *FOUND)
    (differs,) = gated.events("step_audit_differs")
    assert (differs["ranks"], differs["stage"]) == ([1], "after")
    assert [event["node"] for event in gated.events("corruption_found")] == ["n1"]


@pytest.mark.parametrize("layout", ["ddp", pytest.param("fsdp2", marks=pytest.mark.thorough)])
def test_step_without_an_error_is_computed_twice_and_no_more(make_job, tmp_path, layout):
    gated = make_job(layout)
    is_undisturbed(gated, tmp_path, "fault", "step_audit_passed", "step_audit_passed")
    (passed, *_) = gated.events("step_audit_passed")
    assert (passed["ranks"], passed["computed"]) == (2, 2)
    assert not gated.events("step_audit_differs") and not gated.events("corruption_found")


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_ten_audits_in_a_row_find_nothing(tmp_path, fork_server, layout):
    stop = tmp_path / "stop"
    words = ["--layout", layout, "--steps", "1000000", "--stop", str(stop), *SMALL, *NOISE, "--journal"]
    settings = {"nodes": 2, "spares": 1, "slots": 4, "audit_every": 5} | EVERY_STEP
    gated = GatedJob(JobConfig(**settings).checked(), layout, "", tmp_path / "job", fork_server, arguments=words)

    def during(_: object) -> None:
        gated.trial.await_event("step_audit_passed", 10)
        stop.write_text(str(gated.status()["step"] + 200))

    results = gated.trial.run(during)
    assert len(gated.events("step_audit_passed")) >= 10
    wrong = ("step_audit_differs", "step_audits_ended", "corruption_found", "corruption_unexplained")
    assert [event for name in wrong for event in gated.events(name)] == []
    assert {event["computed"] for event in gated.events("step_audit_passed")} == {2}
    reference = run_script_unprotected(SCRIPT, words, 2, tmp_path / "reference")
    assert differences(reference, results) == []
