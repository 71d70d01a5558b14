"""Looks after a running job from the node of its acting coordinator: new spares, nodes that administrators take out,
and the end of the allocation, before which durable checkpoints are written. It runs beside every coordinator and does
something only where that one acts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.admin_drains import AdminDrains
from deadpool.clusters.slurm.allocation import Allocation
from deadpool.clusters.slurm.client import SlurmError
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.clusters.slurm.spare_jobs import SpareJobs
from deadpool.clusters.slurm.time_limit import TimeLimit
from deadpool.control.console import print_line
from deadpool.control.coordinator.job_rpc import ask
from deadpool.errors import DeadPoolError
from deadpool.host.owner_only import open_private

T = TypeVar("T")
_PERIOD_S = 2.0
_STOP_S = 25.0


class JobWatch:
    def __init__(
        self,
        allocation: Allocation,
        folder: RunFolder,
        *,
        place: str,
        spares: int,
        is_durable: bool,
        requeue: bool,
        warn_s: float,
    ) -> None:
        """`place` is where the coordinator of this node listens. `is_durable`: the job writes durable checkpoints."""
        self._allocation, self._folder, self._place = allocation, folder, place
        self._spares = SpareJobs(allocation, folder, wanted=spares, say=self._say)
        self._drains = AdminDrains(folder.run_dir, say=self._say)
        self._limit = TimeLimit(allocation.job_id, folder, requeue=requeue, warn_s=warn_s, say=self._say)
        self._is_durable = is_durable
        self._said: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deadpool-slurm-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Jobs that would bring spares are cancelled if the job has ended."""
        self._stopping.set()
        self._thread.join(_STOP_S)
        if self._folder.result() is not None:
            self._guarded("spares", self._spares.cancel_all)

    def _run(self) -> None:
        while not self._stopping.wait(_PERIOD_S):
            try:
                status = self._status()
            except (DeadPoolError, OSError):
                continue  # no coordinator, or this one stands by
            if status is not None:
                self._look(status)

    def _status(self) -> dict[str, Any] | None:
        run_dir = self._folder.run_dir
        if not run_dir.is_led_from(self._place):
            return None
        return ask(run_dir, "status")

    def _look(self, status: dict[str, Any]) -> None:
        job = self._guarded("job", lambda: client.job(self._allocation.job_id))
        if job is None:
            return
        if self._guarded("limit", lambda: self._limit.look(job.ends_at)):
            self._guarded("spares", self._spares.cancel_all)
            self._guarded("requeue", self._limit.requeue)
            return
        if self._limit.is_near and self._is_durable:
            self._guarded("checkpoint", self._ask_checkpoint)
        bad = self._guarded("nodes", lambda: self._drains.look(status)) or set()
        self._guarded("spares", lambda: self._spares.look(status, bad=bad, ends_at=job.ends_at))

    def _ask_checkpoint(self) -> None:
        """Asks for a durable checkpoint. It is called again and again until the end, so that one write follows the
        other: little is left to be computed again.
        """
        ask(self._folder.run_dir, "durable")
        self._say("checkpoint", "durable checkpoints are written until then")

    def _guarded(self, what: str, action: Callable[[], T]) -> T | None:
        """A controller that is away, or a right that is missing, is said once and tried again: training goes on."""
        try:
            return action()
        except (SlurmError, DeadPoolError, OSError) as error:
            self._say(f"failed {what}", f"Slurm: {error}")
            return None

    def _say(self, what: str, text: str) -> None:
        """Once, until it changes."""
        if self._said.get(what) != text:
            self._said[what] = text
            line = f"[deadpool] {time.strftime('%H:%M:%S')} {text}"
            print_line(line)  # to srun's output, which ends with the batch host
            log = self._folder.run_dir.logs / f"{self._allocation.own}.watch.log"
            with contextlib.suppress(OSError), open_private(log, "a") as file:  # a full disk ends no watch
                file.write(f"{line}\n")
