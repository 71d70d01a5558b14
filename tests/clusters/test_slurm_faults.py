"""What happens to a job on Slurm with 6 nodes and 2 spares: each loss is survived, and a new spare comes after each.

The times are printed (pytest -s). They are of one busy machine, and with Slurm's timeouts as in slurm_config.py.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from slurm_config import ClusterShape, has_freezer
from slurm_faults import Faults
from slurm_job import SlurmJob, slurm_testbed
from slurm_testbed import why_not

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.mark.timeout(1500)
def test_every_loss_is_survived(tmp_path: Path) -> None:
    with slurm_testbed(tmp_path, ClusterShape(nodes=14), life_s=1500.0) as testbed:
        job = SlurmJob(testbed)
        began = time.monotonic()
        job.submit("--nodes 6 --spares 2 --time 60 --overhead-budget 0")
        job.await_protected(spares=2, timeout_s=600.0)
        job.times.append(
            ("from submit to protected training with 2 spares that have rehearsed", time.monotonic() - began)
        )
        faults = Faults(testbed, job, 2)
        assert len(faults.coordinators()) == 2
        racks = {node["node"]: node["rack"] for node in job.status()["nodes"]}
        assert len(set(racks.values())) == 2
        assert len({racks[node] for node in faults.coordinators()}) == 2

        node = faults.victim()
        faults.lose("kill of a node", node, lambda: testbed.kill(node))

        # The batch host has the batch script, srun, rank 0 and the acting coordinator.
        batch_host = job.alice(f"squeue -h -j {job.job_id} -o %B").strip()
        ranks = {each["node"]: each["ranks"] for each in job.status()["nodes"]}
        assert batch_host in faults.coordinators() and 0 in ranks[batch_host]
        faults.lose(
            "kill of the batch host, srun, rank 0 and the coordinator", batch_host, lambda: testbed.kill(batch_host)
        )

        node_2 = faults.victim()
        faults.lose("a node cut off", node_2, lambda: testbed.cut(node_2))
        testbed.mend(node_2)
        faults.gone.remove(node_2)  # nothing is wrong with it any more

        node_3 = faults.victim()
        drain = f"scontrol update nodename={node_3} state=drain reason=memory"
        faults.lose("scontrol drain of a node", node_3, lambda: job.root(drain))
        assert [event["node"] for event in job.events("left")] == [node_3]

        if has_freezer():  # otherwise Slurm's SIGTERM ends trainers at once, and the node is lost
            seated = set(job.nodes("active"))
            node_4 = next(node for _, node in job.spare_jobs().values() if node in seated)
            urgent = f"sbatch -p urgent -w {node_4} -J urgent -o /dev/null --wrap 'sleep 5'"
            faults.lose(
                "preemption of a node",
                node_4,
                lambda: testbed.run(urgent, user="bob", folder="/home/bob"),
                may_return=True,
            )
            assert [event["node"] for event in job.events("left")] == [node_3, node_4]

        job.finish()
        job.assert_nothing_left()
        job.print_times("6 nodes and 2 spares")
        job.assert_bit_identical(6)
