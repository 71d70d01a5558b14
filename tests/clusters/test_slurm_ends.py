"""How jobs on Slurm begin and end otherwise: time limit and requeue, failure, cancellation, sites with other rules."""

from __future__ import annotations

import itertools
import shlex
import time
from pathlib import Path

import pytest
from slurm_config import ClusterShape
from slurm_job import HOME, SlurmJob, slurm_testbed
from slurm_testbed import why_not

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(1800),
]


def exit_code(job: SlurmJob) -> str:
    words = job.alice(f"scontrol show job {job.job_id} --oneliner").split()
    return next(word for word in words if word.startswith("ExitCode="))


def test_requeue_at_the_time_limit(tmp_path: Path) -> None:
    """The script goes on from its own checkpoint in the next allocation."""
    with slurm_testbed(tmp_path, ClusterShape(nodes=3)) as testbed:
        job = SlurmJob(testbed)
        job.submit_with_own_checkpoints("--nodes 2 --spares 1 --time 2 --requeue --warn-s 60")
        first = job.run_folder / f"attempt-{job.job_id}.0"
        began = time.monotonic()
        job.until(first.exists, "the next allocation", 300.0)
        job.times.append(("from submit to the next allocation, at a time limit of 120 s", time.monotonic() - began))
        reached = job.results().newest_step()
        assert reached > 10, job.report()
        assert (job.run_folder / f"notice-{job.job_id}.0.json").exists()
        job.await_step(reached + 5)
        job.times.append(("and to a step that is new", time.monotonic() - began))
        assert job.results().steps_done_again() <= reached % 10 + 11  # since the last checkpoint
        job.finish()
        job.assert_nothing_left()
        job.print_times("time limit with requeue")
        job.assert_bit_identical_with_own_checkpoints(2)


def test_requeue_at_the_time_limit_with_durable_checkpoints(tmp_path: Path) -> None:
    """A script without a checkpoint of its own goes on in the next allocation, and little is computed again."""
    with slurm_testbed(tmp_path, ClusterShape(nodes=3)) as testbed:
        job = SlurmJob(testbed)
        durable = f"--durable {HOME}/checkpoints --overhead-budget 0"
        job.submit(f"--nodes 2 --spares 1 --time 2 --requeue --warn-s 60 {durable}")
        began = time.monotonic()
        job.until((job.run_folder / f"attempt-{job.job_id}.0").exists, "the next allocation", 300.0)
        reached = job.results().newest_step()
        whole = (testbed.home / "checkpoints").glob("step-*/manifest.json")
        newest = max(int(path.parent.name.split("-")[1]) for path in whole)
        job.await_step(reached + 5, 240.0)
        job.times.append(("from submit to a step that is new, over a time limit of 120 s", time.monotonic() - began))
        steps = job.results().steps[0]
        again = [later.step for earlier, later in itertools.pairwise(steps) if later.step <= earlier.step]
        first_again = max(again)  # of the next allocation: the recovery that is played early computes steps again, too
        print(f"{reached + 1} steps in the first allocation, of which {reached + 1 - first_again} were computed again")
        noticed_at = (job.run_folder / f"notice-{job.job_id}.0.json").stat().st_mtime
        before_notice = max(step.step for step in steps if step.ended < noticed_at)
        assert before_notice < newest == first_again, "the newest checkpoint, which was written after the notice"
        job.finish()
        job.assert_nothing_left()
        job.print_times("time limit with requeue and durable checkpoints")
        job.assert_bit_identical(2)


def test_a_script_that_fails_makes_a_job_that_failed(tmp_path: Path) -> None:
    with slurm_testbed(tmp_path, ClusterShape(nodes=2)) as testbed:
        job = SlurmJob(testbed)
        (testbed.home / "fails.py").write_text(
            "import deadpool\npool = deadpool.join(backend='gloo')\nraise SystemExit(3)"
        )
        job.alice("deadpool slurm submit --nodes 2 --run-dir run --quarantine-after 0 fails.py")
        job.note_id()
        job.await_state("FAILED", 200.0)
        assert exit_code(job) == "ExitCode=1:0"
        job.assert_nothing_left()


def test_a_cancelled_job_leaves_nothing(tmp_path: Path) -> None:
    with slurm_testbed(tmp_path, ClusterShape(nodes=3)) as testbed:
        job = SlurmJob(testbed)
        job.submit("--nodes 2 --spares 1")
        job.await_step(3, 200.0)
        job.alice(f"scancel {job.job_id}")
        job.await_state("CANCELLED", 60.0)
        job.assert_nothing_left()


def test_srun_dies_alone(tmp_path: Path) -> None:
    with slurm_testbed(tmp_path, ClusterShape(nodes=2)) as testbed:
        job = SlurmJob(testbed)
        job.submit("--nodes 2")
        job.await_step(3, 200.0)
        sruns = job.root("pgrep -u alice -x srun").split()
        job.root(f"kill -9 {' '.join(sruns)}")
        job.await_step(job.results().newest_step() + 20)
        job.finish()
        job.assert_nothing_left()
        job.assert_bit_identical(2)


def test_srun_in_an_allocation_of_ones_own(tmp_path: Path) -> None:
    """No topology, racks by features, trainers by GPUs, spares by a variable."""
    with slurm_testbed(tmp_path, ClusterShape(nodes=4, topology=False, gpus=2)) as testbed:
        job = SlurmJob(testbed)
        own = f"#!/bin/bash\nexport DEADPOOL_SPARES=1\nsrun deadpool agent -- {job.workload()}\n"
        (testbed.home / "own script.sh").write_text(own)
        job.alice("sbatch -N 3 --ntasks-per-node=1 --gres=gpu:2 -o own.out 'own script.sh'")
        job.note_id()
        job.name = f"deadpool-runs/slurm-{job.job_id}.0"
        began = tmp_path / "alice" / job.name
        job.until(began.exists, "the run folder", 60.0)
        job.until(lambda: job.status().get("phase") == "running", "training", 200.0)
        status = job.status()
        assert sorted(node["ranks"] for node in status["nodes"]) == [[], [0, 1], [2, 3]]
        assert {node["rack"] for node in status["nodes"]} == {"rack0", "rack1"}
        job.name = "run"  # of the results
        job.await_step(5)
        job.finish()
        job.assert_nothing_left()
        job.assert_bit_identical(4)


def test_a_site_without_sbatch_on_nodes(tmp_path: Path) -> None:
    """The reason is said, and the job goes on without a new spare."""
    with slurm_testbed(tmp_path, ClusterShape(nodes=5, submit_only_from_login=True)) as testbed:
        job = SlurmJob(testbed)
        job.submit("--nodes 3 --spares 1 --overhead-budget 0")
        job.await_protected(spares=1, timeout_s=600.0)
        testbed.kill("n2")
        log = job.run_folder / "slurm.out"
        job.until(lambda: "sbatch was refused" in log.read_text(), "the reason", 90.0)
        job.await_step(job.results().newest_step() + 5)
        assert job.spare_jobs() == {}
        job.finish()
        job.assert_nothing_left()
        job.assert_bit_identical(3)


def test_another_user_sees_nothing_of_a_job(tmp_path: Path) -> None:
    with slurm_testbed(tmp_path, ClusterShape(nodes=1)) as testbed:
        job = SlurmJob(testbed)
        job.submit("--nodes 1")
        job.until((job.run_folder / "secret").exists, "the secret", 60.0)
        testbed.home.chmod(0o755)
        for path in (f"{HOME}/run/secret", f"{HOME}/run/slurm.json"):
            assert "Permission denied" in testbed.run(f"cat {shlex.quote(path)}", user="bob", check=False)
        job.alice(f"scancel {job.job_id}")
        job.assert_nothing_left()
