"""Why a submitted job has not started, in words: from Slurm's own reason and the sizes of its partition.

A job may ask for more nodes than there are, and then waits without a word. What is certain is refused before it is
submitted (`preflight`). What may change is said once, and again when it has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.client import PartitionSize, PendingJob, SlurmError
from deadpool.clusters.slurm.run_folder import submitted_job

FIRST_LOOK_S = 5.0
"""The time that Slurm's scheduler has to look at a new job."""
_SHORTEST_S, _LONGEST_S = 0.5, 30.0
_MEANINGS = {
    "Resources": "too few of its nodes are free",
    "Priority": "other jobs come first",
    "PartitionNodeLimit": "no job may have so many nodes there; change --nodes or --partition",
    "PartitionTimeLimit": "no job may run so long there; change --time or --partition",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs",
    "BadConstraints": "no node has what is asked for, so it will never start",
    "Reservation": "its reservation has not begun",
    "Dependency": "another job has to end first",
    "BeginTime": "it is not to begin before a time",
    "JobHeldUser": "you hold it back",
    "JobHeldAdmin": "an administrator holds it back",
    "Licenses": "a license is not free",
}
_BEGINNINGS = {
    "ReqNodeNotAvail": "a node that it asks for is not available",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down, drained or kept for other jobs",
    "Nodes required for job are DOWN": "nodes that it needs are down, drained or kept for other jobs",
    "QOS": "a limit of its quality of service",
    "Assoc": "a limit of its account",
}
"""Reasons that go on with more than their name."""


def why_it_waits(job: PendingJob, partitions: Iterable[PartitionSize]) -> str:
    """A sentence. Slurm's own word is in it, so that its documentation can be searched for it."""
    what = f"it waits for {job.nodes} node{'' if job.nodes == 1 else 's'} of partition {job.partition}"
    meaning = _meaning(job.reason)
    reason = f"{job.reason} ({meaning})" if meaning else job.reason or "Slurm has not said why yet"
    there = "; ".join(map(_size, (each for each in partitions if each.name in job.partition.split(","))))
    return f"{what}: {reason}" + (f"; {there}" if there else "")


def _meaning(reason: str) -> str:
    if reason in _MEANINGS:
        return _MEANINGS[reason]
    return next((meaning for begin, meaning in _BEGINNINGS.items() if reason.startswith(begin)), "")


def _size(partition: PartitionSize) -> str:
    parts = f"{partition.idle} idle, {partition.in_use} in use, {partition.other} down or drained"
    return f"{partition.name} has {partition.total} nodes: {parts}"


def why_not_begun(run_dir: Path) -> str | None:
    """Says why the job that was submitted with this run folder has written nothing there. None means that there is no
    such job.
    """
    if (job_id := submitted_job(run_dir)) is None:
        return None
    try:
        job = client.pending_job(job_id)
        if job is not None:
            return f"job {job_id} of Slurm has not started: {why_it_waits(job, client.partition_sizes())}"
    except SlurmError as error:
        return f"job {job_id} of Slurm has written nothing yet, and Slurm does not say why: {error}"
    return f"job {job_id} of Slurm starts just now, or has ended before it began: see {run_dir / 'slurm.out'}"


class StartWatch:
    """Says what one job waits for, each time that it is something else."""

    def __init__(self, job_id: str, say: Callable[[str], None]) -> None:
        self._job_id, self._say = job_id, say
        self._said = ""  # the reason that was told last

    def look(self) -> bool:
        """False: it does not wait any more. A controller that does not answer is asked again."""
        try:
            job = client.pending_job(self._job_id)
            if job is not None and job.reason and job.reason != self._said:
                self._tell(job.reason, why_it_waits(job, client.partition_sizes()))
        except SlurmError as error:
            self._tell("unknown", f"it is not known whether it has started: {error}")
            return True
        return job is not None

    def follow(self) -> None:
        """Follows the job until it has started, or has ended without that."""
        pause_s = _SHORTEST_S
        while self.look():
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
        facts = client.job(self._job_id)
        self._say(f"it is {facts.state}" if facts is not None else "Slurm does not know it any more")

    def first_look(self) -> bool:
        """Looks until Slurm has said something of the new job, and returns whether the job waits."""
        deadline = time.monotonic() + FIRST_LOOK_S
        while (waits := self.look()) and not self._said and time.monotonic() < deadline:
            time.sleep(_SHORTEST_S)
        return waits

    def _tell(self, reason: str, words: str) -> None:
        """How many nodes are idle changes all the time, and is no news."""
        if reason != self._said:
            self._said = reason
            self._say(words)
