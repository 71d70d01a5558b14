"""lightning.Trainer, whose loops are its own: faults at any moment leave the losses as they would have been."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage, run_script_unprotected

from deadpool.config import JobConfig
from deadpool.errors import JobFailed
from deadpool.workload.results import differences

pytest.importorskip("lightning")
SCRIPT = Path(__file__).with_name("lightning_script.py")
PER_EPOCH, STEPS = 6, 18
"""44 rows on 2 ranks, 2 per batch, 2 batches per step: the last step of an epoch has one batch only."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run_script_unprotected(SCRIPT, [], 2, tmp_path_factory.mktemp("unprotected") / "run")


def run(folder, fork_server, *faults, arguments=(), **settings):
    config = JobConfig(nodes=2, spares=1, faults=faults, **{**EVERY_STEP, **settings}).checked()
    stage = Stage(config, "plain", "", folder / "job", fork_server, SCRIPT, list(arguments))
    return stage, stage.trial.run()


CASES = {
    "first step ever": ["at=forward step=0 node=n0"],
    "in the middle of an epoch": ["at=backward step=8 node=n1"],
    "first step of an epoch": [f"at=optimizer step={PER_EPOCH} node=n1"],
    "last step of an epoch": [f"at=backward step={2 * PER_EPOCH - 1} node=n0"],
    "after a validation": ["at=forward step=3 rank=1"],
    "while a version is sent": ["at=wire step=9 node=n1"],
    "last step of all": [f"at=optimizer step={STEPS - 1} rank=0"],
}
QUICK = ("in the middle of an epoch",)


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.thorough) for case in CASES]
)
def test_bit_identical_to_torchrun(tmp_path, fork_server, undisturbed, case):
    stage, disturbed = run(tmp_path, fork_server, *CASES[case])
    assert len(stage.events("fault")) == 1
    assert differences(undisturbed, disturbed) == []
    assert len(disturbed.losses[0]) == STEPS
