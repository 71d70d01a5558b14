"""TRL's trainers that generate what they train on: completions, losses and state are those of torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_run import faults_after_audit, run_audited
from gated_job import EVERY_STEP, GatedJob
from torchrun import torchrun

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences
from deadpool.errors import JobFailed
from deadpool_lab.workload.run import LIMIT_S

for package in ("trl", "peft", "datasets"):
    pytest.importorskip(package)
pytestmark = pytest.mark.thorough
SCRIPT = Path(__file__).with_name("trl_script.py")

LASTING = ["--iterations", "2", "--steps-per-generation", "4"]
TRAININGS = {
    "GRPO": (["--kind", "grpo"], 10),
    "GRPO, four updates per generation": (["--kind", "grpo", *LASTING], 16),
}
MOMENTS = {
    "generation": ["--kill", "generation:4:1"],
    "rewards": ["--kill", "reward:4:0"],
    "first step": ["at=forward step=0 node=n1"],
    "forward": ["at=forward step=6 rank=0"],
    "backward": ["at=backward step=3 node=n1"],
    "optimizer": ["at=optimizer step=5 node=n0"],
    "while a version is sent": ["at=wire step=6 node=n1"],
    "last step": ["at=optimizer step=LAST rank=0"],
}
VARIANTS = {
    "recomputed activations": ["--kind", "grpo", "--checkpointing", *LASTING],
    "LoRA and a KL term": ["--kind", "grpo", "--lora", "--beta", "0.05"],
    "an update of half the size ends each epoch": ["--kind", "grpo", "--steps-per-generation", "1", "--rows", "10"],
    "RLOO": ["--kind", "rloo", *LASTING],
}


@pytest.fixture(scope="module")
def fork_server():
    """TRL takes long to import."""
    shared = SharedForkServer(["trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer", "peft"])
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def get(arguments):
        if tuple(arguments) not in known:
            folder = tmp_path_factory.mktemp("plain")
            torchrun(2, folder, str(SCRIPT), "--out", str(folder), *arguments, timeout_s=LIMIT_S)
            known[tuple(arguments)] = Results.read(folder)
        return known[tuple(arguments)]

    return get


def run(folder, fork_server, how, arguments, **settings):
    """`how`: a fault to be injected, or arguments of a script that kills itself."""
    faults, more = ([], how) if how[:1] == ["--kill"] else (how, [])
    config = JobConfig(nodes=2, spares=1, faults=tuple(faults), **EVERY_STEP, **settings).checked()
    gated = GatedJob(config, "", "", folder / "job", fork_server, SCRIPT, [*arguments, *more])
    return gated, gated.trial.run()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("training", TRAININGS)
def test_bit_identical_to_torchrun(tmp_path, fork_server, undisturbed, training, moment):
    arguments, updates = TRAININGS[training]
    how = [each.replace("LAST", str(updates - 1)) for each in MOMENTS[moment]]
    gated, disturbed = run(tmp_path, fork_server, how, arguments)
    assert differences(undisturbed(arguments), disturbed) == []
    assert len(disturbed.losses[0]) == updates
    assert len(gated.events("fault")) == 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("moment", ["generation", "backward"])
def test_other_trainings(tmp_path, fork_server, undisturbed, variant, moment):
    gated, disturbed = run(tmp_path, fork_server, MOMENTS[moment], VARIANTS[variant])
    assert differences(undisturbed(VARIANTS[variant]), disturbed) == []
    assert len(gated.events("fault")) == 1


LONG_ENOUGH = ["--rows", "18"]  # ten updates where a variant would have six; epochs still end with half of one
AUDITED = {training: arguments for training, (arguments, _) in TRAININGS.items()} | {
    variant: [*arguments, *LONG_ENOUGH] if "--rows" in arguments else arguments
    for variant, arguments in VARIANTS.items()
}


@pytest.mark.parametrize(("training", "fault"), faults_after_audit(AUDITED))
def test_audited_and_bit_identical(tmp_path, fork_server, undisturbed, record_property, training, fault):
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, AUDITED[training])
    record_property("audit", verdict)
    assert differences(undisturbed(AUDITED[training]), disturbed) == []
    assert verdict == "exact"


@pytest.mark.parametrize("training", TRAININGS)
def test_survivors_do_not_keep_their_processes(tmp_path, fork_server, undisturbed, training):
    arguments, _ = TRAININGS[training]
    _, disturbed = run(tmp_path, fork_server, MOMENTS["backward"], arguments, in_place="never")
    assert differences(undisturbed(arguments), disturbed) == []


def test_survivor_keeps_its_process_and_its_memory(tmp_path, fork_server, undisturbed):
    arguments, _ = TRAININGS["GRPO, four updates per generation"]
    gated, disturbed = run(tmp_path, fork_server, MOMENTS["backward"], arguments)
    assert differences(undisturbed(arguments), disturbed) == []
    assert gated.trainers()[0] == "n0.0"
    assert [event["kept"] for event in gated.events("restored") if event["rank"] == 0] == [True]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--kind", "grpo", "--paged"], "continuous batching cannot be protected with GRPOTrainer: it was never tried")],
)
def test_what_could_not_be_redone_is_refused(tmp_path, fork_server, arguments, reason):
    with pytest.raises(JobFailed, match=reason):
        run(tmp_path, fork_server, [], arguments)
