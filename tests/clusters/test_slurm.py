"""A protected job on a real Slurm, submitted by an ordinary user: a node dies, a new spare comes, nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_config import ClusterShape
from slurm_job import SlurmJob, slurm_testbed
from slurm_testbed import why_not

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.mark.timeout(1800)
def test_a_node_dies_and_a_new_spare_joins_by_itself(tmp_path: Path) -> None:
    with slurm_testbed(tmp_path, ClusterShape(nodes=6)) as testbed:
        job = SlurmJob(testbed, name="my first run")
        job.submit("--nodes 3 --spares 1 --time 30 --overhead-budget 0")
        job.await_protected(spares=1)
        victim = next(node for node in job.nodes("active") if node != "n1")
        job.survive("kill of a node", lambda: testbed.kill(victim), lambda: job.events("go")[1:])
        job.until(lambda: any(job.nodes("spare")), "a new spare", 90.0)
        assert set(job.nodes("spare")) <= {node for _, node in job.spare_jobs().values()}
        assert victim not in job.nodes("spare")
        assert len(job.spare_jobs()) == 1  # not more than needed
        testbed.start_node(victim)  # until Slurm sees a dead node again, or calls it DOWN, a job there is COMPLETING
        job.finish()
        job.assert_nothing_left()
        job.assert_bit_identical(3)
        job.print_times("3 nodes and 1 spare")
