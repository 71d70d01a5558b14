"""The end of a job, as the last node that is left tells it to Slurm."""

from __future__ import annotations

import time

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.client import SlurmError
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.control.console import print_line

_POLL_S = 0.2
_ACKNOWLEDGED_S = 10.0
"""The time that the batch script has to say that it ends the Slurm job."""
_LEAST_S = 30.0


def another_coordinator_acts(folder: RunFolder, node_timeout_s: float) -> bool:
    """Asked when this node's agent failed. If no coordinator acts any more the whole job has failed. A node that was
    cut off sees the run folder again together with the coordinator's signs of life, if at all."""
    last, deadline = folder.last_beat(), time.monotonic() + max(_LEAST_S, 6 * node_timeout_s)
    while time.monotonic() < deadline:
        if folder.last_beat() != last or folder.result() is not None:
            return True
        time.sleep(_POLL_S)
    return False


def end_slurm_job(folder: RunFolder, job_id: str) -> None:
    """The batch script ends the Slurm job if it is there. Otherwise this is the last one out."""
    deadline = time.monotonic() + _ACKNOWLEDGED_S
    while time.monotonic() < deadline:
        if folder.is_acknowledged():
            return
        time.sleep(_POLL_S)
    try:
        facts = client.job(job_id)
        if facts is not None and facts.is_running:
            client.end_job(job_id, folder.result() or 0)
    except SlurmError as error:
        print_line(f"[deadpool] job {job_id} could not be ended ({error}): use scancel")
