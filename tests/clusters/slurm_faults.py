"""Faults of nodes in a job on a Slurm testbed: which node is hit, and what has to hold afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from slurm_job import SlurmJob
from slurm_testbed import SlurmTestbed


class Faults:
    """One job, to which one thing happens after the other."""

    def __init__(self, testbed: SlurmTestbed, job: SlurmJob, spares: int) -> None:
        self.testbed, self.job, self.spares = testbed, job, spares
        self.gone: set[str] = set()

    def victim(self) -> str:
        """A node of the first allocation that trains and has no coordinator."""
        spared = self.coordinators() | {node for _, node in self.job.spare_jobs().values()}
        return next(node for node in reversed(self.job.nodes("active")) if node not in spared)

    def coordinators(self) -> set[str]:
        hosts = {node["host"]: node["node"] for node in self.job.status()["nodes"] if "host" in node}
        places = [path.read_text().strip('"').split(":")[0] for path in self.job.run_folder.glob("place-*.json")]
        return {hosts[place] for place in places if place in hosts}

    def recovered(self) -> Callable[[], bool]:
        """A check that holds once training runs in another generation than now."""
        before = self.job.status()["generation"]

        def has_recovered() -> bool:
            status = self.job.status()
            return status.get("phase") == "running" and status["generation"] != before

        return has_recovered

    def lose(self, what: str, node: str, happen: Callable[[], Any], *, may_return: bool = False) -> None:
        """`may_return`: nothing is wrong with the node, so that a new spare may be on it."""
        self.job.survive(what, happen, self.recovered(), 120.0)
        assert node not in self.job.nodes("active")
        self.gone |= set() if may_return else {node}
        self.await_new_spare(what)

    def await_new_spare(self, what: str) -> None:
        began = time.monotonic()
        self.job.await_protected(spares=self.spares, timeout_s=600.0)
        self.job.times.append((f"{what}: {self.spares} spares are ready again", time.monotonic() - began))
        assert not self.gone & set(self.job.nodes("spare"))
        waiting = [state for state, node in self.job.spare_jobs().values() if state == "PENDING"]
        assert waiting == [] and len(self.job.nodes("spare")) == self.spares  # not more than needed
