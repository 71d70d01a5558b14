"""The end of the allocation: it is announced to the training script, and the job is requeued if that was asked for.

Read from Slurm, not from a signal to the batch script: the batch host may be gone. A preemption with a grace time looks
the same, as an end that has come near; then Slurm requeues by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.run_folder import RunFolder

REQUEUE_S = 20.0
"""The time before the time limit at which the job is requeued: at the limit itself Slurm would end it for good."""


class TimeLimit:
    def __init__(
        self, job_id: str, folder: RunFolder, *, requeue: bool, warn_s: float, say: Callable[[str, str], None]
    ) -> None:
        self._job_id, self._folder, self._requeue, self._say = job_id, folder, requeue, say
        self._warn_s = max(warn_s, REQUEUE_S)
        self._noticed: float | None = None
        self._preempted = False  # and noticed, of a job whose end Slurm does not tell
        self.is_near = False  # again, when somebody has extended the time limit

    def look(self, ends_at: float | None) -> bool:
        """Returns whether the job is to be requeued now."""
        left_s = ends_at - time.time() if ends_at is not None else float("inf")
        if ends_at is not None and left_s < self._warn_s and self._noticed != ends_at:
            self._noticed = ends_at
            reason = "preempted" if client.is_preempted(self._job_id) else "time limit"
            self._folder.set_notice(reason, ends_at)
            self._say("limit", f"the allocation ends in {left_s:.0f} s ({reason})")
        elif ends_at is None and not self._preempted and client.is_preempted(self._job_id):
            self._preempted = True
            self._folder.set_notice("preempted", None)
            self._say(
                "limit", "the allocation ends soon (preempted); of a job without a time limit Slurm does not say when"
            )
        self.is_near = left_s < self._warn_s or self._preempted
        return self._requeue and left_s < REQUEUE_S and not client.is_preempted(self._job_id)

    def requeue(self) -> None:
        self._say("requeue", f"job {self._job_id} is requeued: the script begins again in its next allocation")
        client.requeue(self._job_id)
