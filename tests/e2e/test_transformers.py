"""transformers.Trainer, whose loop is its own: faults at any moment leave the losses as they would have been."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_run import WHILE_SENT, faults_after_audit, journal_of, run_audited, run_framework
from gated_job import run_script_unprotected
from torchrun import torchrun

from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences
from deadpool_lab.workload.run import LIMIT_S

pytest.importorskip("accelerate")
SCRIPT = Path(__file__).with_name("trainer_script.py")
SHARDS = ("--fsdp",)
PER_EPOCH, UPDATES = 6, 18
"""44 rows on 2 ranks, 2 per batch, 2 batches per update: the last update of an epoch has one batch only."""


@pytest.fixture(scope="module")
def fork_server():
    """transformers takes long to import."""
    shared = SharedForkServer(["transformers.trainer", "accelerate"], forks_commands=True)
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run_script_unprotected(SCRIPT, [], 2, tmp_path_factory.mktemp("unprotected") / "run")


def run(folder, fork_server, *faults, arguments=(), gate=None, **settings):
    return run_framework(SCRIPT, folder, fork_server, faults, list(arguments), gate, settings)


CASES = {
    "in the middle of an epoch": ["at=backward step=8 node=n1"],
    "first step ever": ["at=forward step=0 node=n0"],
    "first update of an epoch": [f"at=optimizer step={PER_EPOCH} node=n1"],
    "last update of an epoch": [f"at=backward step={2 * PER_EPOCH - 1} node=n0"],
    "after an evaluation": ["at=forward step=5 rank=1"],
    "while a version is sent": [WHILE_SENT],
    "last update of all": [f"at=optimizer step={UPDATES - 1} rank=0"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_bit_identical_to_torchrun(tmp_path, fork_server, undisturbed, case):
    gated, disturbed = run(tmp_path, fork_server, *CASES[case])
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed, disturbed) == []
    assert len(disturbed.losses[0]) == UPDATES


@pytest.mark.thorough
def test_values_of_callbacks_are_logged_once_through_the_job(tmp_path, fork_server):
    gated, _ = run(tmp_path, fork_server, "at=backward step=8 node=n1", arguments=["--log"])
    assert len(gated.events("fault")) == 1
    assert journal_of(gated) == {rank: [(n, {"updates": n + 1}) for n in range(UPDATES)] for rank in (0, 1)}


@pytest.mark.thorough
def test_survivors_do_not_keep_their_processes(tmp_path, fork_server, undisturbed):
    _, disturbed = run(tmp_path, fork_server, "at=backward step=8 node=n1", in_place="never")
    assert differences(undisturbed, disturbed) == []


@pytest.mark.thorough
def test_survivor_keeps_its_process_and_its_memory(tmp_path, fork_server, undisturbed):
    step = 2 * PER_EPOCH - 1
    gated, disturbed = run(tmp_path, fork_server, f"at=backward step={step} node=n1", gate=step)
    assert differences(undisturbed, disturbed) == []
    assert gated.trainers()[0] == "n0.0"
    assert [event["kept"] for event in gated.events("restored") if event["rank"] == 0] == [True]


@pytest.fixture(scope="module")
def undisturbed_shards(tmp_path_factory):
    return run_script_unprotected(SCRIPT, [*SHARDS], 2, tmp_path_factory.mktemp("unprotected") / "run")


@pytest.mark.thorough
class TestShards:
    """FSDP2 through Accelerate: each rank has a shard of every layer and of the optimizer's state."""

    @pytest.mark.parametrize("case", CASES)
    def test_bit_identical_to_torchrun(self, tmp_path, fork_server, undisturbed_shards, case):
        gated, disturbed = run(tmp_path, fork_server, *CASES[case], arguments=SHARDS)
        assert len(gated.events("fault")) == 1
        assert differences(undisturbed_shards, disturbed) == []
        assert len(disturbed.losses[0]) == UPDATES

    def test_survivors_do_not_keep_their_processes(self, tmp_path, fork_server, undisturbed_shards):
        fault = "at=backward step=8 node=n1"
        _, disturbed = run(tmp_path, fork_server, fault, arguments=SHARDS, in_place="never")
        assert differences(undisturbed_shards, disturbed) == []

    def test_training_that_goes_on_from_a_checkpoint(self, tmp_path, fork_server):
        run_script_unprotected(SCRIPT, [*SHARDS, "--stop-at", "8"], 2, tmp_path / "before")
        arguments = [*SHARDS, "--resume", str(tmp_path / "before" / "out" / "checkpoints" / "checkpoint-7")]
        undisturbed = run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "unprotected")
        _, disturbed = run(tmp_path, fork_server, "at=backward step=2 node=n1", arguments=arguments)
        assert differences(undisturbed, disturbed) == [] and min(disturbed.losses[0]) == 7


AUDITED = {"DDP": ("undisturbed", ()), "FSDP2": ("undisturbed_shards", SHARDS)}


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "fault"), faults_after_audit(AUDITED))
def test_audited_and_bit_identical(tmp_path, fork_server, request, record_property, layout, fault):
    reference, arguments = AUDITED[layout]
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, list(arguments))
    record_property("audit", verdict)
    assert differences(request.getfixturevalue(reference), disturbed) == []
    assert verdict == "exact"


@pytest.mark.thorough
def test_training_that_stops_early(tmp_path, fork_server):
    early = ["--stop-at", "10"]
    undisturbed = run_script_unprotected(SCRIPT, early, 2, tmp_path / "unprotected")
    _, disturbed = run(tmp_path, fork_server, "at=backward step=8 node=n1", arguments=early)
    assert differences(undisturbed, disturbed) == [] and len(disturbed.losses[0]) == 10


@pytest.mark.thorough
@pytest.mark.parametrize("step", [0, 2, 9])
def test_training_that_goes_on_from_a_checkpoint(tmp_path, fork_server, step):
    """The checkpoint is of update 7, so the job's first step is in the middle of an epoch."""
    run_script_unprotected(SCRIPT, ["--stop-at", "8"], 2, tmp_path / "before")
    arguments = ["--resume", str(tmp_path / "before" / "out" / "checkpoints" / "checkpoint-7")]
    undisturbed = run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "unprotected")
    _, disturbed = run(tmp_path, fork_server, f"at=backward step={step} node=n1", arguments=arguments)
    assert differences(undisturbed, disturbed) == [] and min(disturbed.losses[0]) == 7


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["--workers", "2"], ["--accumulation", "1"], ["--accumulation", "4"]])
def test_loaders_with_workers_and_other_accumulations(tmp_path, fork_server, arguments):
    out = tmp_path / "unprotected"
    torchrun(2, tmp_path, str(SCRIPT), "--out", str(out), *arguments, timeout_s=LIMIT_S)
    _, disturbed = run(tmp_path, fork_server, "at=backward step=7 node=n0", arguments=arguments)
    assert differences(Results.read(out), disturbed) == []


@pytest.mark.thorough
def test_compiled_model(tmp_path, fork_server):
    """All ranks still compile when one is lost; a process that takes its rank compiles anew."""
    arguments = ["--compile", "aot_eager"]
    torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "plain"), *arguments, timeout_s=LIMIT_S)
    undisturbed = Results.read(tmp_path / "plain")
    fault = "at=forward step=0 rank=0"
    gated, disturbed = run(tmp_path, fork_server, fault, arguments=arguments)
    assert differences(undisturbed, disturbed) == []
    assert len(gated.events("fault")) == 1


@pytest.mark.thorough
def test_process_that_starts_later_finds_a_newer_checkpoint(tmp_path, fork_server, undisturbed):
    """It is of update 7, and the job began at its first."""
    _, disturbed = run(
        tmp_path, fork_server, "at=backward step=9 node=n1", arguments=["--resume-last"], in_place="never"
    )
    assert differences(undisturbed, disturbed) == []


@pytest.mark.thorough
def test_version_that_nobody_has_tried_is_told_of_once_per_job(tmp_path, fork_server, undisturbed):
    """Also if the process that has told it is lost, and fresh ones run the script."""
    script, fault = SCRIPT.with_name("unknown_library.py"), "at=backward step=8 node=n0"
    gated, disturbed = run_framework(script, tmp_path, fork_server, (fault,), [], None, {"in_place": "never"})
    (told,) = gated.events("unknown_library")
    assert told["rank"] == 0 and "never tested with transformers 5.99.0" in told["reason"]
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed, disturbed) == []


DATA = {
    "random collator": ["--mask"],
    "random collator, workers": ["--mask", "--random-data", "--workers", "2"],
    "persistent workers": ["--mask", "--random-data", "--workers", "2", "--persistent"],
    "grouped by length": ["--sampling", "group_by_length", "--mask"],
    "a sampler of one's own": ["--own-sampler", "--mask"],
    "epochs that are stopped": ["--epoch-stop", "--mask"],
    "stream": ["--stream", "torch", "--mask"],
    "stream, not dispatched": ["--stream", "torch", "--mask", "--no-dispatch"],
    "stream, workers": ["--stream", "torch", "--mask", "--workers", "2", "--no-dispatch"],
    "stream of Hugging Face": ["--stream", "hf", "--mask", "--no-dispatch"],
    "shuffled stream of Hugging Face": ["--stream", "hf-shuffled", "--mask"],
}
"""Streams have 11 batches per epoch and rank, and two make an update: some updates span two epochs."""
FAULTS = {
    "the first step": "at=forward step=0 node=n0",
    "an epoch": "at=backward step=7 node=n1",
    "an edge of epochs": "at=optimizer step=5 rank=1",
    "a copy": WHILE_SENT,
}


def undisturbed_by(tmp_path, arguments):
    torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "unprotected"), *arguments, timeout_s=LIMIT_S)
    return Results.read(tmp_path / "unprotected")


@pytest.mark.thorough
@pytest.mark.parametrize("moment", FAULTS)
@pytest.mark.parametrize("kind", DATA)
def test_data_as_people_have_it(tmp_path, fork_server, kind, moment):
    if "Hugging" in kind:
        pytest.importorskip("datasets")
    undisturbed = undisturbed_by(tmp_path, DATA[kind])
    gated, disturbed = run(tmp_path, fork_server, FAULTS[moment], arguments=DATA[kind])
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed, disturbed) == []


@pytest.mark.thorough
def test_resumed_in_the_middle_of_an_epoch_audited(tmp_path, fork_server, record_property):
    """The checkpoint is of update 7: the audit is of the rest of its epoch, and the fault comes in the next one."""
    run_script_unprotected(SCRIPT, ["--mask", "--stop-at", "8"], 2, tmp_path / "before")
    arguments = ["--mask", "--resume", str(tmp_path / "before" / "out" / "checkpoints" / "checkpoint-7")]
    undisturbed = run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "unprotected")
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, "at=backward step=7 node=n1", arguments)
    record_property("audit", verdict)
    assert differences(undisturbed, disturbed) == [] and min(disturbed.losses[0]) == 7
    assert verdict == "exact"


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "fault"), faults_after_audit(DATA))
def test_data_audited(tmp_path, fork_server, record_property, kind, fault):
    if "Hugging" in kind:
        pytest.importorskip("datasets")
    undisturbed = undisturbed_by(tmp_path, DATA[kind])
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, DATA[kind])
    record_property("audit", verdict)
    assert differences(undisturbed, disturbed) == []
    assert verdict == "exact"
