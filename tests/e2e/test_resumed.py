"""Own loops that go on from a checkpoint of their own: with faults before and after it, bit-identical."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_run import faults_after_audit, run_audited, run_framework
from torchrun import torchrun

from deadpool.demo.trial import Results, differences

SCRIPT = Path(__file__).with_name("resumed_script.py")
FAULTS = ("at=forward step=0 node=n0", "at=backward step=2 node=n1", "at=optimizer step=7 rank=1")


def undisturbed_by(folder: Path, *arguments: str) -> Results:
    torchrun(2, folder.parent, str(SCRIPT), "--out", str(folder), *arguments)
    return Results.read(folder)


def run(folder: Path, fork_server, fault: str, *arguments: str, **settings) -> Results:
    gated, disturbed = run_framework(SCRIPT, folder, fork_server, (fault,), list(arguments), None, settings)
    assert len(gated.events("fault")) == 1
    return disturbed


@pytest.mark.thorough
@pytest.mark.parametrize("in_place", ["auto", "never"])
@pytest.mark.parametrize("fault", FAULTS)
def test_loop_that_goes_on_from_a_checkpoint(tmp_path, fork_server, fault, in_place):
    undisturbed_by(tmp_path / "before", "--steps", "4")
    arguments = ("--checkpoints", str(tmp_path / "before" / "checkpoints"))
    undisturbed = undisturbed_by(tmp_path / "plain", *arguments)
    disturbed = run(tmp_path, fork_server, fault, *arguments, in_place=in_place)
    assert differences(undisturbed, disturbed) == [] and min(disturbed.losses[0]) == 3


@pytest.mark.thorough
def test_faults_before_and_after_the_checkpoint(tmp_path, fork_server):
    """The second job writes checkpoints beside the one that it began with, and is hit between two of them: a process
    that starts then finds one of another step than that of the snapshots."""
    undisturbed_by(tmp_path / "before", "--steps", "4")
    first = run(tmp_path / "first", fork_server, "at=backward step=2 node=n1", "--steps", "4", in_place="never")
    assert differences(Results.read(tmp_path / "before"), first) == []
    undisturbed = undisturbed_by(tmp_path / "plain", "--checkpoints", str(tmp_path / "before" / "checkpoints"))
    folder = tmp_path / "first" / "job" / "out" / "checkpoints"
    second = run(
        tmp_path / "second", fork_server, "at=backward step=4 node=n0", "--checkpoints", str(folder), in_place="never"
    )
    assert differences(undisturbed, second) == []


@pytest.mark.thorough
def test_process_that_starts_later_finds_a_newer_checkpoint(tmp_path, fork_server):
    """The job has begun without one."""
    undisturbed = undisturbed_by(tmp_path / "plain")
    disturbed = run(tmp_path, fork_server, "at=backward step=5 node=n1", in_place="never")
    assert differences(undisturbed, disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "fault"), faults_after_audit(["resumed"]))
def test_resumed_and_audited(tmp_path, fork_server, kind, fault):
    undisturbed_by(tmp_path / "before", "--steps", "4")
    arguments = ["--steps", "12", "--checkpoints", str(tmp_path / "before" / "checkpoints")]
    undisturbed = undisturbed_by(tmp_path / "plain", *arguments)
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, arguments)
    assert differences(undisturbed, disturbed) == []
    assert verdict == "exact"
