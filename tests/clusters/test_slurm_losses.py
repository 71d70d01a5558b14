"""Losses of nodes that change how a job on Slurm ends, and a spare that is not needed any more."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from slurm_config import ClusterShape
from slurm_faults import Faults
from slurm_job import HOME, SlurmJob, slurm_testbed
from slurm_testbed import ROOT, why_not

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(1800),
]
WITHOUT_LIBRARY = """\
import ctypes


class CDLL(ctypes.CDLL):
    def __init__(self, name, *arguments, **named):
        if "slurm" in str(name):
            raise OSError(f"{name}: cannot open shared object file")
        super().__init__(name, *arguments, **named)


ctypes.CDLL = CDLL
"""


def result(job: SlurmJob) -> dict[str, object]:
    found: dict[str, object] = json.loads((job.run_folder / f"result-{job.job_id}.0.json").read_text())
    return found


def test_the_last_one_out_has_only_scancel(tmp_path: Path) -> None:
    """The batch host is gone, and so is the library that could tell Slurm of success. The result file tells it."""
    with slurm_testbed(tmp_path, ClusterShape(nodes=4)) as testbed:
        (testbed.home / "python").mkdir()
        (testbed.home / "python" / "sitecustomize.py").write_text(WITHOUT_LIBRARY)
        job = SlurmJob(testbed)
        path = f"PYTHONPATH={HOME}/python:{shlex.quote(str(ROOT))}/src"
        submit = f"deadpool slurm submit --run-dir {job.name} --nodes 3 --spares 1 --overhead-budget 0"
        job.alice(f"{path} {submit} {job.workload()}")
        job.note_id()
        job.await_protected(spares=1, timeout_s=600.0)
        batch_host = job.alice(f"squeue -h -j {job.job_id} -o %B").strip()
        faults = Faults(testbed, job, 0)
        job.survive("kill of the batch host", lambda: testbed.kill(batch_host), faults.recovered(), 120.0)
        job.finish(state="CANCELLED")
        assert result(job)["code"] == 0
        job.assert_nothing_left()
        job.print_times("an end by scancel")
        job.assert_bit_identical(3)


def test_a_spare_that_is_not_needed_any_more_is_cancelled(tmp_path: Path) -> None:
    """The only other node is in use, so that the new spare's job waits. Then the node that was cut off comes back."""
    with slurm_testbed(tmp_path, ClusterShape(nodes=5, down_after_s=120)) as testbed:
        testbed.run("sbatch -w n5 -J other -o /dev/null --wrap 'sleep 900'", user="bob", folder="/home/bob")
        job = SlurmJob(testbed)
        job.submit("--nodes 3 --spares 1 --overhead-budget 0")
        job.await_protected(spares=1, timeout_s=600.0)
        faults = Faults(testbed, job, 1)
        node = faults.victim()
        job.survive("a node cut off", lambda: testbed.cut(node), faults.recovered(), 120.0)
        job.until(lambda: [state for state, _ in job.spare_jobs().values()] == ["PENDING"], "a job that waits", 60.0)
        testbed.mend(node)
        job.until(lambda: job.nodes("spare") == [node], "the node as a spare", 120.0)
        job.until(lambda: job.spare_jobs() == {}, "the end of the job that waited", 60.0)
        job.await_protected(spares=1)
        job.finish()
        job.assert_nothing_left()
        job.assert_bit_identical(3)


def test_both_coordinators_are_lost(tmp_path: Path) -> None:
    """Nobody could lead the nodes that are left: the job fails, says why, and leaves nothing."""
    with slurm_testbed(tmp_path, ClusterShape(nodes=5)) as testbed:
        job = SlurmJob(testbed)
        job.submit("--nodes 4 --spares 1 --overhead-budget 0 --isolation-timeout-s 15")
        job.await_protected(spares=1, timeout_s=600.0)
        lost = sorted(Faults(testbed, job, 1).coordinators())
        assert len(lost) == 2
        for node in lost:
            testbed.kill(node)
        job.until((job.run_folder / f"result-{job.job_id}.0.json").exists, "the result", 200.0)
        job.await_state("FAILED", 120.0)
        assert result(job) == {"code": 1, "reason": "no coordinator is left"}
        job.assert_nothing_left()
