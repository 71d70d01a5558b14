"""States that administrators and Slurm give to nodes and jobs: fail, down, drained by a health check, preempted."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path

import pytest
from slurm_config import ClusterShape
from slurm_faults import Faults
from slurm_job import SlurmJob, slurm_testbed
from slurm_testbed import ROOT, why_not

from deadpool.events.event import read_events

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(1800),
]


def test_state_fail_and_state_down(tmp_path: Path) -> None:
    """A node that fails is drained: no step is done again. A node that is down is lost."""
    with slurm_testbed(tmp_path, ClusterShape(nodes=8)) as testbed:
        job = SlurmJob(testbed)
        job.submit("--nodes 3 --spares 2 --overhead-budget 0")
        job.await_protected(spares=2, timeout_s=600.0)
        faults = Faults(testbed, job, 2)
        fails = faults.victim()
        set_fail = f"scontrol update nodename={fails} state=fail reason=memory"
        faults.lose("scontrol fail of a node", fails, lambda: job.root(set_fail))
        assert [event["node"] for event in job.events("left")] == [fails]
        assert job.results().steps_done_again() == 0

        down = next(node for node in job.nodes("active") if node not in faults.coordinators())
        set_down = f"scontrol update nodename={down} state=down reason=power"
        faults.lose("scontrol down of a node", down, lambda: job.root(set_down))
        assert [event["node"] for event in job.events("left")] == [fails]
        job.finish()
        job.assert_nothing_left()
        job.print_times("state=fail and state=down")
        job.assert_bit_identical(3)


def test_the_whole_job_is_preempted(tmp_path: Path) -> None:
    """No node of it could take over: the script is warned, Slurm requeues the job, and the script goes on from its own
    checkpoint. The site grants more time than that of the notice."""
    with slurm_testbed(tmp_path, ClusterShape(nodes=3, grace_s=45)) as testbed:
        job = SlurmJob(testbed)
        job.submit_with_own_checkpoints("--nodes 2 --spares 1 --requeue --warn-s 25")
        job.until(lambda: job.out.exists() and job.results().newest_step() > 12, "step 12", 200.0)
        began = time.monotonic()
        testbed.run("sbatch -p urgent -N 3 -J urgent -o /dev/null --wrap 'sleep 5'", user="bob", folder="/home/bob")
        notice = job.run_folder / f"notice-{job.job_id}.0.json"
        job.until(notice.exists, "the notice", 300.0)
        job.times.append(("from the urgent job to the notice", time.monotonic() - began))
        assert '"preempted"' in notice.read_text()
        before = job.results().newest_step()
        job.until((job.run_folder / f"attempt-{job.job_id}.0").exists, "the next allocation", 300.0)
        job.times.append(("from the urgent job to the next allocation", time.monotonic() - began))
        reached = job.results().newest_step()
        assert reached > before, "it trained on until its end"
        old = read_events(job.run_folder / f"attempt-{job.job_id}.0" / "events.jsonl")
        drains = ("drain", "drain_failed", "drain_refused", "handover", "left")
        assert [event for event in old if event["what"] in drains] == []
        job.await_step(reached + 5)
        assert job.results().steps_done_again() <= reached % 10 + 11  # since the last checkpoint
        job.finish()
        job.assert_nothing_left()
        job.print_times("preemption of the whole job")
        job.assert_bit_identical_with_own_checkpoints(2)


def test_a_health_check_drains_a_node(tmp_path: Path) -> None:
    """The HealthCheckProgram of the how-to, followed literally, on a node whose shared memory is too small."""
    command = tmp_path / "deadpool"
    words = ["env", f"PYTHONPATH={ROOT}/src", str(Path(sys.executable).with_name("deadpool"))]
    command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    scripts = re.findall(
        r"^#!/bin/sh\n.*?(?=^```)", (ROOT / "docs/howto/doctor.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (check,) = [script for script in scripts if "scontrol update" in script]
    program = tmp_path / "health"
    program.write_text(check.replace("/opt/deadpool/bin/deadpool", str(command)).replace("--gpus 8 ", ""))
    for path in (command, program):
        path.chmod(0o755)
    with slurm_testbed(tmp_path / "cluster", ClusterShape(nodes=4, health_program=str(program))) as testbed:
        job = SlurmJob(testbed)
        job.submit("--nodes 2 --spares 1 --overhead-budget 0")
        job.await_protected(spares=1, timeout_s=600.0)
        assert "drain" not in job.root("sinfo -h -N -o %T"), "nothing is wrong so far"
        faults = Faults(testbed, job, 1)
        node = faults.victim()
        faults.lose(
            "a health check drains a node", node, lambda: testbed.on_node(node, "mount -o remount,size=1m /dev/shm")
        )
        assert [event["node"] for event in job.events("left")] == [node]
        assert "deadpool doctor" in job.root(f"scontrol show node {node}")
        assert job.results().steps_done_again() == 0
        job.finish()
        job.assert_nothing_left()
        job.print_times("a health check")
        job.assert_bit_identical(2)
