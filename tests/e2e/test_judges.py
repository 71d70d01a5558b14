"""A device errs in the same way in each computation, and its shard has no replica: nodes that compute the same step for
its rank name it, and the run ends as undisturbed.

Gates hold the ranks until the audit is ordered and a spare is ready, and behind the step until what has to follow has
followed.
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

EVERY = 12
ORDERED = 8  # the gate at which ranks wait for the order: then the step before version 12 is audited
AUDITED = EVERY - 1
REDONE = 5  # times, until two nodes agree on what a third one says otherwise
GATES = tuple(range(EVERY, EVERY + REDONE + 1))
STEPS = EVERY + REDONE + 4  # no second audit comes

MakeJob = Callable[..., GatedJob]


def arguments(layout: str) -> list[str]:
    return ["--layout", layout, "--steps", str(STEPS), *SMALL, *NOISE]


@pytest.fixture
def make_job(tmp_path: Path, fork_server: SharedForkServer) -> MakeJob:
    def make(layout: str, *faults: str, **config: object) -> GatedJob:
        settings = {"nodes": 2, "spares": 2, "slots": 4, "drills": True, "faults": faults}
        audits = {"audit_every": EVERY, "audit_spares_every": 1}
        acts = " ".join(f"wait@{gate}:1" for gate in (ORDERED, *GATES))
        checked = JobConfig(**settings | audits | EVERY_STEP | config).checked()
        return GatedJob(checked, layout, acts, tmp_path / "job", fork_server, arguments=arguments(layout))

    return make


def run(gated: GatedJob, folder: Path, redone: int) -> None:
    """Each time that the step is computed again, ranks stand at another gate behind it until they are to go back."""

    def during(_: object) -> None:
        gated.await_gate(ORDERED)
        gated.trial.await_true(lambda: 0 in rehearsed(gated), "a spare to rehearse rank 0")
        gated.trial.await_event("step_audit_ordered")
        gated.open_gate(ORDERED)
        for number, gate in enumerate(GATES[:redone], start=1):
            gated.await_gate(gate)
            gated.trial.await_event("fault", number)
            gated.open_gate(gate)
        gated.trial.await_event("step_audit_judged")
        for gate in GATES[redone:]:
            gated.open_gate(gate)

    results = gated.trial.run(during)
    reference = run_script_unprotected(SCRIPT, arguments(gated.layout), 2, folder / "reference")
    assert differences(reference, results) == []
    assert {event["kind"] for event in gated.events("fault")} == {"audit"}


def rehearsed(gated: GatedJob) -> list[int]:
    """The ranks for which trainers of spares are parked."""
    trainers = [each for node in gated.status()["nodes"] for each in node["trainers"]]
    return [each["rank"] for each in trainers if each["state"] == "parked"]


def is_named(gated: GatedJob, node: str) -> None:
    (found,) = gated.events("corruption_found")
    assert (found["node"], found["ranks"], found["found"]) == (node, [0], "repeated")
    assert [event["node"] for event in gated.events("left")] == [node]
    assert [event["node"] for event in gated.events("quarantined")] == [node]
    assert gated.events("step_audit_passed")[0]["computed"] == REDONE + 1


def test_device_that_always_errs_is_named_by_two_spares(make_job, tmp_path):
    gated = make_job("fsdp2", f"flip=moment rank=0 step={AUDITED} lasts=always")
    run(gated, tmp_path, REDONE)
    is_named(gated, "n0")
    (judged,) = gated.events("step_audit_judged")
    assert (judged["ranks"], set(judged["nodes"])) == ([0], {"n2", "n3"})
    assert gated.seats() == [judged["nodes"][-1], "n1"]


@pytest.mark.thorough
def test_one_spare_and_a_node_that_has_a_seat_name_it(make_job, tmp_path):
    gated = make_job("fsdp2", f"flip=moment rank=0 step={AUDITED} lasts=always", spares=1)
    run(gated, tmp_path, REDONE)
    is_named(gated, "n0")
    assert gated.seats() == ["n1", "n2"], "the spare has taken the rank of the node that took its rank"


def test_healthy_node_is_judged_and_becomes_a_spare(make_job, tmp_path):
    gated = make_job("fsdp2", spares=1)
    run(gated, tmp_path, redone=2)
    (judged,) = gated.events("step_audit_judged")
    assert (judged["ranks"], judged["nodes"]) == ([0], ["n0", "n2"])
    assert gated.seats() == ["n2", "n1"]
    wrong = ("step_audit_differs", "corruption_found", "corruption_undecided", "judging_ended", "quarantined", "left")
    assert [event for name in wrong for event in gated.events(name)] == []


@pytest.mark.thorough
def test_turns_go_round_and_nobody_is_named(tmp_path, fork_server):
    stop = tmp_path / "stop"
    words = ["--layout", "fsdp2", "--steps", "1000000", "--stop", str(stop), *SMALL, *NOISE, "--journal"]
    settings = {"nodes": 2, "spares": 1, "slots": 4, "audit_every": 5, "audit_spares_every": 1} | EVERY_STEP
    gated = GatedJob(JobConfig(**settings).checked(), "fsdp2", "", tmp_path / "job", fork_server, arguments=words)

    def during(_: object) -> None:
        gated.trial.await_event("step_audit_judged", 4)
        stop.write_text(str(gated.status()["step"] + 200))

    results = gated.trial.run(during)
    judged = gated.events("step_audit_judged")
    assert [event["ranks"] for event in judged[:4]] == [[0], [1], [0], [1]]
    assert all(len(set(event["nodes"])) == 2 for event in judged)
    wrong = ("step_audit_differs", "step_audits_ended", "judging_ended", "corruption_found", "corruption_unexplained")
    assert [event for name in wrong for event in gated.events(name)] == []
    reference = run_script_unprotected(SCRIPT, words, 2, tmp_path / "reference")
    assert differences(reference, results) == []
