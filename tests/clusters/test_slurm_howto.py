"""The how-to of Slurm, followed literally: its commands run as they stand there, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from slurm_config import ClusterShape
from slurm_job import SlurmJob, slurm_testbed
from slurm_testbed import ROOT, why_not

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
BLOCK = r"^```{}\n(.*?)^```"


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(BLOCK.format(language), text, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(1800)
def test_the_how_to_is_followed(tmp_path: Path) -> None:
    submit, look, kill, after, own = blocks("howto/slurm.md", "bash")
    with slurm_testbed(tmp_path, ClusterShape(nodes=6)) as testbed:
        (testbed.home / "train.py").write_text(blocks("tutorial.md", "python")[0])
        job = SlurmJob(testbed, name="runs/first")
        assert "Submitted batch job" in job.alice(submit)
        job.note_id()
        job.await_protected(spares=1, timeout_s=600.0)
        assert "running" in job.alice(look)
        assert "n2" in job.nodes("active")  # the node that the how-to names
        job.alice(kill)
        job.until(lambda: job.spare_jobs() and job.nodes("spare"), "a new spare", 120.0)
        printed = job.alice(after)
        assert "deadpool" in printed and "fault-1" in printed
        job.alice(own)
        assert (testbed.home / "job.sbatch").read_text().startswith("#!/bin/bash")
        job.await_state("COMPLETED", 300.0)
        job.assert_nothing_left()
