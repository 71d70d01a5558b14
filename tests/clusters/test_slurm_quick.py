"""One short job on a real Slurm: submitted by an ordinary user, run on two nodes, ended in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_config import ClusterShape
from slurm_job import SlurmJob, slurm_testbed
from slurm_testbed import why_not

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


@pytest.mark.timeout(1800)
def test_a_job_runs_on_two_nodes(tmp_path: Path) -> None:
    with slurm_testbed(tmp_path, ClusterShape(nodes=2)) as testbed:
        job = SlurmJob(testbed)
        script = "import os, pathlib\npathlib.Path('rank' + os.environ['RANK']).write_text(os.uname().nodename)\n"
        (testbed.home / "train.py").write_text(script)
        job.alice("deadpool slurm submit --nodes 2 --run-dir run train.py")
        job.note_id()
        job.await_state("COMPLETED")
        assert {(testbed.home / f"rank{rank}").read_text() for rank in (0, 1)} == {"n1", "n2"}
        job.assert_nothing_left()
