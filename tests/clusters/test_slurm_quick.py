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


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_job_that_has_to_wait_says_for_what_and_one_that_can_never_start_is_refused(tmp_path: Path) -> None:
    with slurm_testbed(tmp_path, ClusterShape(nodes=2)) as testbed:
        job = SlurmJob(testbed)
        (testbed.home / "train.py").write_text("print('over')\n")
        refused = job.alice("deadpool slurm submit --nodes 2 --spares 1 --run-dir never train.py 2>&1", check=False)
        assert "it asks for 3 nodes, spares included, and partition" in refused and "has 2. Ask for fewer" in refused
        assert job.alice("squeue -h --me -o %i").split() == []

        told = job.alice("deadpool slurm submit --nodes 2 --sbatch=--hold --run-dir run train.py")
        job.note_id()
        assert f"job {job.job_id}: it waits for 2 nodes of partition" in told
        assert "JobHeldUser (you hold it back)" in told and "has 2 nodes: 2 idle, 0 in use, 0 down or drained" in told
        looked = job.alice("deadpool status run 2>&1", check=False)
        assert f"deadpool: job {job.job_id} of Slurm has not started: it waits for 2 nodes" in looked
        job.alice(f"scontrol release {job.job_id}")
        job.await_state("COMPLETED")
        job.assert_nothing_left()
