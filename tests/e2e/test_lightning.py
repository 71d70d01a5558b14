"""lightning.Trainer, whose loops are its own: faults at any moment leave the losses as they would have been."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_run import WHILE_SENT, faults_after_audit, journal_of, run_audited, run_framework
from gated_job import run_script_unprotected
from torchrun import torchrun

from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences
from deadpool.errors import JobFailed

pytest.importorskip("lightning")
SCRIPT = Path(__file__).with_name("lightning_script.py")
PER_EPOCH, STEPS = 6, 18
"""44 rows on 2 ranks, 2 per batch, 2 batches per step: the last step of an epoch has one batch only."""


@pytest.fixture(scope="module")
def fork_server():
    """Lightning takes long to import."""
    shared = SharedForkServer(["lightning.pytorch", "torchmetrics"], forks_commands=True)
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run_script_unprotected(SCRIPT, [], 2, tmp_path_factory.mktemp("unprotected") / "run")


def run(folder, fork_server, *faults, arguments=(), gate=None, **settings):
    return run_framework(SCRIPT, folder, fork_server, faults, list(arguments), gate, settings)


CASES = {
    "first step ever": ["at=forward step=0 node=n0"],
    "in the middle of an epoch": ["at=backward step=8 node=n1"],
    "first step of an epoch": [f"at=optimizer step={PER_EPOCH} node=n1"],
    "last step of an epoch": [f"at=backward step={2 * PER_EPOCH - 1} node=n0"],
    "after a validation": ["at=forward step=3 rank=1"],
    "while a version is sent": [WHILE_SENT],
    "last step of all": [f"at=optimizer step={STEPS - 1} rank=0"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_bit_identical_to_torchrun(tmp_path, fork_server, undisturbed, case):
    gated, disturbed = run(tmp_path, fork_server, *CASES[case])
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed, disturbed) == []
    assert len(disturbed.losses[0]) == STEPS


@pytest.mark.thorough
def test_values_of_callbacks_are_logged_once_through_the_job(tmp_path, fork_server):
    gated, _ = run(tmp_path, fork_server, "at=backward step=8 node=n1", arguments=["--log"])
    assert len(gated.events("fault")) == 1
    assert journal_of(gated) == {rank: [(n, {"updates": n + 1}) for n in range(STEPS)] for rank in (0, 1)}


@pytest.mark.thorough
def test_survivors_do_not_keep_their_processes(tmp_path, fork_server, undisturbed):
    _, disturbed = run(tmp_path, fork_server, "at=backward step=8 node=n1", in_place="never")
    assert differences(undisturbed, disturbed) == []


@pytest.mark.thorough
def test_survivor_keeps_its_process_and_its_memory(tmp_path, fork_server, undisturbed):
    """Although forward and backward run inside of the optimizer's step."""
    step = 2 * PER_EPOCH - 1
    gated, disturbed = run(tmp_path, fork_server, f"at=backward step={step} node=n1", gate=step)
    assert differences(undisturbed, disturbed) == []
    assert gated.trainers()[0] == "n0.0"
    assert [event["kept"] for event in gated.events("restored") if event["rank"] == 0] == [True]


VARIANTS = {
    "no accumulation": ["--accumulation", "1"],
    "more accumulation": ["--accumulation", "4"],
    "a number of steps": ["--max-steps", "10"],
    "stopped early": ["--patience", "1"],
    "optimized by hand": ["--manual"],
    "optimized by hand, a number of steps": ["--manual", "--max-steps", "13"],
    "a progress bar": ["--bar"],
    "sharded": ["--fsdp2"],
    "sharded, no accumulation": ["--fsdp2", "--accumulation", "1"],
    "workers": ["--workers", "2"],
}
OF_PLAIN_TORCHRUN = ("workers",)  # processes of the other runner may have no children


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("step", [4, 7])
def test_other_trainings(tmp_path, fork_server, variant, step):
    arguments = VARIANTS[variant]
    if variant in OF_PLAIN_TORCHRUN:
        (tmp_path / "unprotected").mkdir()
        torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "unprotected"), *arguments)
        undisturbed = Results.read(tmp_path / "unprotected")
    else:
        undisturbed = run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "unprotected")
    gated, disturbed = run(tmp_path, fork_server, f"at=backward step={step} node=n{step % 2}", arguments=arguments)
    assert differences(undisturbed, disturbed) == []
    assert len(gated.events("fault")) == 1


AUDITED = {"DDP": [], **{variant: VARIANTS[variant] for variant in ("sharded", "optimized by hand")}}


@pytest.mark.thorough
@pytest.mark.parametrize(("variant", "fault"), faults_after_audit(AUDITED))
def test_audited_and_bit_identical(tmp_path, fork_server, record_property, variant, fault):
    undisturbed = run_script_unprotected(SCRIPT, AUDITED[variant], 2, tmp_path / "unprotected")
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, AUDITED[variant])
    record_property("audit", verdict)
    assert differences(undisturbed, disturbed) == []
    assert verdict == "exact"


@pytest.mark.thorough
def test_several_faults(tmp_path, fork_server, undisturbed):
    faults = ["at=forward step=2 rank=0", "at=backward step=7 rank=1", "at=optimizer step=13 node=n0"]
    gated, disturbed = run(tmp_path, fork_server, *faults)
    assert differences(undisturbed, disturbed) == []
    assert len(gated.events("fault")) == 3


DATA = {
    "random collator": ["--mask"],
    "random collator, workers": ["--mask", "--random-data", "--workers", "2"],
    "persistent workers": ["--mask", "--random-data", "--workers", "2", "--persistent"],
    "stream": ["--stream", "--mask", "--force"],
    "stream, workers": ["--stream", "--mask", "--workers", "1", "--force"],
    "two loaders": ["--two", "--mask", "--force"],
}
FAULTS = {
    "the first step": "at=forward step=0 node=n0",
    "an epoch": "at=backward step=8 node=n1",
    "an edge of epochs": f"at=optimizer step={PER_EPOCH} rank=1",
    "a copy": WHILE_SENT,
}


def undisturbed_by(tmp_path, arguments):
    torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "unprotected"), *arguments)
    return Results.read(tmp_path / "unprotected")


@pytest.mark.thorough
@pytest.mark.parametrize("moment", FAULTS)
@pytest.mark.parametrize("kind", DATA)
def test_data_as_people_have_it(tmp_path, fork_server, kind, moment):
    undisturbed = undisturbed_by(tmp_path, DATA[kind])
    gated, disturbed = run(tmp_path, fork_server, FAULTS[moment], arguments=DATA[kind])
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed, disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "fault"), faults_after_audit(DATA))
def test_data_audited(tmp_path, fork_server, record_property, kind, fault):
    undisturbed = undisturbed_by(tmp_path, DATA[kind])
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, DATA[kind])
    record_property("audit", verdict)
    assert differences(undisturbed, disturbed) == []
    assert verdict == "exact"


RESUMED = {
    "written in a validation": ([], "validation", 8),
    "written in the middle of accumulated batches": ([], "steps", 9),
    "written after a step": (["--accumulation", "1"], "steps", 14),
    "written at the end of an epoch": ([], "epochs", PER_EPOCH),
    "optimized by hand": (["--manual"], "steps", 13),
    "sharded": (["--fsdp2"], "validation", 8),
    "stream": (["--stream", "--mask", "--accumulation", "1"], "steps", 14),
}
"""How a checkpoint came about from which fit(ckpt_path=...) goes on: more arguments, when they are saved, and after how
many optimizer steps the training ends that saves it."""


def resumed_by(folder: Path, kind: str) -> list[str]:
    arguments, saves, steps = RESUMED[kind]
    before = [*arguments, "--save", saves, "--max-steps", str(steps)]
    run_script_unprotected(SCRIPT, before, 2, folder / "before")
    return [*arguments, "--force", "--save", saves, "--resume", str(folder / "before" / "out" / "checkpoints")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fault", ["at=forward step=0 node=n0", "at=backward step=2 node=n1", "at=optimizer step=7 rank=1"]
)
@pytest.mark.parametrize("kind", RESUMED)
def test_training_that_goes_on_from_a_checkpoint(tmp_path, fork_server, kind, fault):
    arguments = resumed_by(tmp_path, kind)
    undisturbed = run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "unprotected")
    gated, disturbed = run(tmp_path, fork_server, fault, arguments=arguments)
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed, disturbed) == []
    assert min(disturbed.losses[0]) > 0


@pytest.mark.thorough
def test_faults_before_and_after_the_checkpoint_that_training_goes_on_from(tmp_path, fork_server):
    """A process that starts later takes its state from snapshots of other steps than the checkpoint that it finds."""
    before = ["--save", "steps", "--max-steps", "9"]
    reference = run_script_unprotected(SCRIPT, before, 2, tmp_path / "reference")
    _, first = run(tmp_path / "first", fork_server, "at=backward step=7 node=n1", arguments=before, in_place="never")
    assert differences(reference, first) == []
    went_on = {
        name: [*before[:2], "--force", "--resume", str(folder / "checkpoints")]
        for name, folder in (("plain", tmp_path / "reference" / "out"), ("job", tmp_path / "first" / "job" / "out"))
    }
    undisturbed = run_script_unprotected(SCRIPT, went_on["plain"], 2, tmp_path / "unprotected")
    fault = "at=backward step=5 node=n0"
    _, disturbed = run(tmp_path / "second", fork_server, fault, arguments=went_on["job"], in_place="never")
    assert differences(undisturbed, disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "fault"), faults_after_audit(RESUMED))
def test_resumed_and_audited(tmp_path, fork_server, record_property, kind, fault):
    arguments = resumed_by(tmp_path, kind)
    undisturbed = run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "unprotected")
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, arguments)
    record_property("audit", verdict)
    assert differences(undisturbed, disturbed) == []
    assert verdict == "exact"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--manual", "--by-hand-over", "3"], "no optimizer has stepped"),
    ],
)
def test_what_could_not_be_redone_is_refused(tmp_path, fork_server, arguments, reason):
    with pytest.raises(JobFailed, match=reason):
        run(tmp_path, fork_server, arguments=arguments)
