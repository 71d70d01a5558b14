"""A recovery is played early in a job: it costs an exact script nothing but time, and names one that is not exact."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import ACTS_SCRIPT, EVERY_STEP, GatedJob, run_script_unprotected, workload
from sizes import INJECTED
from test_layouts import MATRIX, STATEFUL
from waiting import LIMIT_S

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import differences
from deadpool.errors import JobFailed

SCRIPT = Path(__file__).with_name("audit_script.py")
GATE = 2  # every rank has completed so many steps, and stands before the optimizer of the next one
LONG = ["--steps", "1000000"]
AFTER = 5  # the step after the version that is compared

MakeStage = Callable[..., GatedJob]


@pytest.fixture
def make_gated_job(tmp_path: Path, fork_server: SharedForkServer) -> MakeStage:
    def make(script: Path, arguments: list[str], **settings) -> GatedJob:
        config = JobConfig(**({"nodes": 2, "spares": 1, "rehearse_recovery": True} | EVERY_STEP | settings)).checked()
        acts = f"wait@{GATE}:1 wait@{AFTER}:1"
        return GatedJob(config, "", acts, tmp_path / "job", fork_server, script=script, arguments=arguments)

    return make


def run_audited(gated: GatedJob) -> None:
    """The job stands until the audit is ordered, and until its end is: its few short steps would be over by then."""

    def during(_: object) -> None:
        open_when_audited(gated)

    gated.trial.run(during)


def open_when_audited(gated: GatedJob) -> None:
    for gate, event in ((GATE, "audit_ordered"), (AFTER, "audit_ends_rank")):
        gated.await_gate(gate)
        gated.trial.await_event(event)
        gated.open_gate(gate)


@pytest.mark.parametrize(
    "layout", [name if name == "ddp" else pytest.param(name, marks=pytest.mark.thorough) for name in MATRIX.layouts]
)
def test_layout_is_exact(make_gated_job, tmp_path, layout):
    """No layout of the matrix is called inexact. Its gates are in the loader of acts.py, so it has no other."""
    shape = MATRIX.layouts[layout]
    flags = [flag for flag in shape.flags if flag not in STATEFUL]
    arguments = workload(layout, *MATRIX.common, *flags, *INJECTED)
    gated = make_gated_job(ACTS_SCRIPT, arguments, nodes=shape.nodes, nproc_per_node=shape.per_node)
    run_audited(gated)
    (passed,) = gated.events("audit_passed")
    world_size, spare = shape.nodes * shape.per_node, f"n{shape.nodes}"
    assert (passed["rank"], passed["ranks"]) == (0, world_size)
    assert gated.seats()[0] == spare, "the node of the rank that was replaced is the spare now"
    assert [event["reason"] for event in gated.events("fault")] == ["audit: this rank ends on purpose"]
    assert not gated.events("quarantined") and not gated.events("audit_differs")
    reference = run_script_unprotected(ACTS_SCRIPT, arguments, world_size, tmp_path / "reference")
    assert not differences(reference, gated.trial.results())


def test_state_in_a_variable_is_named_before_the_first_fault(make_gated_job):
    gated = make_gated_job(SCRIPT, [])
    run_audited(gated)
    (found,) = gated.events("audit_differs")
    assert (found["rank"], found["replaced"], found["rule"]) == (0, 0, "state_in_variables")
    assert found["ranks"] == [0, 1], "a survivor counts the steps that it computes again"
    assert gated.trial.events()[-1]["what"] != "failed"


@pytest.mark.thorough
def test_state_in_an_object_is_exact(make_gated_job, tmp_path):
    gated = make_gated_job(SCRIPT, ["--protected"])
    run_audited(gated)
    assert gated.events("audit_passed") and not gated.events("audit_differs")
    undisturbed = run_script_unprotected(SCRIPT, ["--protected"], 2, tmp_path / "undisturbed")
    assert not differences(undisturbed, gated.trial.results())


def test_job_that_is_to_stop_ends_and_says_what_differs(make_gated_job):
    gated = make_gated_job(SCRIPT, [], on_inexact="stop")
    with pytest.raises(JobFailed):
        run_audited(gated)
    (failed,) = gated.events("failed")
    assert "of rank 0 differs: the script is not exact" in failed["reason"]


@pytest.mark.thorough
def test_it_can_be_asked_for_again(make_gated_job, tmp_path):
    """By `deadpool job audit`, for each kind of rank: the first position, and one of the others, also in a step."""
    stop = tmp_path / "stop"
    gated = make_gated_job(
        ACTS_SCRIPT, [*workload("ddp"), *LONG, "--stop", str(stop)], nodes=3, rehearse_recovery=False
    )
    said: list[str] = []
    codes: list[int] = []

    def during(_: object) -> None:
        gated.await_gate(GATE)
        gated.await_committed(GATE)
        gated.trial.await_event("rehearsed")
        command = [sys.executable, "-m", "deadpool.cli.main", "job", "audit", "--json"]
        asked = subprocess.Popen([*command, gated.trial.job.run_dir.path], text=True, stdout=subprocess.PIPE)
        open_when_audited(gated)
        said.append(asked.communicate(timeout=LIMIT_S)[0])
        codes.append(asked.returncode)
        stop.write_text(str(gated.status()["step"] + 300))

    gated.trial.run(during)
    assert codes == [0]
    verdicts = json.loads(said[0])
    assert [tuple(verdict[name] for name in ("exact", "replaced", "ranks", "inside")) for verdict in verdicts] == [
        (True, 0, 3, False),
        (True, 1, 3, False),
        (True, 1, 3, True),
    ]
