"""TRL's trainers, LoRA and bf16. `scripts/frameworks` installs what they need."""

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
UPDATES = 10

TRAININGS = {
    "SFT": ["--kind", "sft"],
    "SFT in bf16": ["--bf16"],
    "SFT with LoRA": ["--lora"],
    "DPO with a reference model": ["--kind", "dpo"],
    "DPO with a reference that follows": ["--kind", "dpo", "--sync-ref"],
    "DPO with LoRA": ["--kind", "dpo", "--lora"],
}
MOMENTS = {
    "backward": "at=backward step=5 node=n1",
    "optimizer": "at=optimizer step=4 rank=0",
    "last step": f"at=forward step={UPDATES - 1} node=n0",
}


@pytest.fixture(scope="module")
def fork_server():
    """TRL takes long to import."""
    shared = SharedForkServer(["trl.trainer.sft_trainer", "trl.trainer.dpo_trainer", "peft"])
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def get(training):
        if training not in known:
            folder = tmp_path_factory.mktemp("plain")
            torchrun(2, folder, str(SCRIPT), "--out", str(folder), *TRAININGS[training], timeout_s=LIMIT_S)
            known[training] = Results.read(folder)
        return known[training]

    return get


def run(folder, fork_server, arguments, *faults):
    config = JobConfig(nodes=2, spares=1, faults=faults, **EVERY_STEP).checked()
    gated = GatedJob(config, "", "", folder / "job", fork_server, SCRIPT, arguments)
    return gated, gated.trial.run()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("training", TRAININGS)
def test_bit_identical_to_torchrun(tmp_path, fork_server, undisturbed, training, moment):
    gated, disturbed = run(tmp_path, fork_server, TRAININGS[training], MOMENTS[moment])
    assert differences(undisturbed(training), disturbed) == []
    assert len(disturbed.losses[0]) == UPDATES
    assert len(gated.events("fault")) == 1


@pytest.mark.parametrize(("training", "fault"), faults_after_audit(TRAININGS))
def test_audited_and_bit_identical(tmp_path, fork_server, undisturbed, record_property, training, fault):
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, TRAININGS[training])
    record_property("audit", verdict)
    assert differences(undisturbed(training), disturbed) == []
    assert verdict == "exact"


def test_reference_that_follows_and_was_not_passed_is_refused(tmp_path, fork_server):
    with pytest.raises(JobFailed, match="SyncRefModelCallback has a model in its attribute ref_model"):
        run(tmp_path, fork_server, ["--kind", "dpo", "--sync-ref", "--forget-ref"])
