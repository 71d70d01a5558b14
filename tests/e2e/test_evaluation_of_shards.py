"""FSDP2 and evaluations: whole parameters that a forward pass has left behind are neither captured nor kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences

SCRIPT = Path(__file__).with_name("evaluation_script.py")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run_script_unprotected(SCRIPT, [], 2, tmp_path_factory.mktemp("unprotected") / "run")


@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ("at=backward step=3 node=n1", {}),
        pytest.param("at=optimizer step=2 node=n0", {}, marks=pytest.mark.thorough),
        pytest.param("at=forward step=4 rank=1", {"in_place": "never"}, marks=pytest.mark.thorough),
    ],
)
def test_bit_identical(tmp_path, fork_server, undisturbed, fault, settings):
    config = JobConfig(nodes=2, spares=1, faults=(fault,), **{**EVERY_STEP, **settings}).checked()
    gated = GatedJob(config, "plain", "", tmp_path / "job", fork_server, SCRIPT, [])
    assert differences(undisturbed, gated.trial.run()) == []
    assert len(gated.events("fault")) == 1
