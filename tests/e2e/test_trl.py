"""TRL's trainers, LoRA and bf16. `scripts/frameworks` installs what they need."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage
from torchrun import torchrun

from deadpool.config import JobConfig
from deadpool.workload.results import Results, differences

for package in ("trl", "peft", "datasets"):
    pytest.importorskip(package)
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).with_name("trl_script.py")
UPDATES = 10

TRAININGS = {
    "SFT": ["--kind", "sft"],
    "SFT in bf16": ["--bf16"],
    "SFT with LoRA": ["--lora"],
    "DPO with a reference model": ["--kind", "dpo"],
    "DPO with LoRA": ["--kind", "dpo", "--lora"],
}
FAULTS = ["at=backward step=5 node=n1", "at=optimizer step=4 rank=0", f"at=forward step={UPDATES - 1} node=n0"]


@pytest.mark.parametrize("training", TRAININGS)
def test_bit_identical_to_torchrun(tmp_path, fork_server, training):
    (tmp_path / "plain").mkdir()
    torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "plain"), *TRAININGS[training])
    undisturbed = Results.read(tmp_path / "plain")
    for index, fault in enumerate(FAULTS):
        config = JobConfig(nodes=2, spares=1, faults=(fault,), **EVERY_STEP).checked()
        stage = Stage(config, "", "", tmp_path / f"job{index}", fork_server, SCRIPT, TRAININGS[training])
        assert differences(undisturbed, stage.trial.run()) == [], fault
        assert len(stage.events("fault")) == 1
    assert len(undisturbed.losses[0]) == UPDATES
