"""New spares: one-node jobs of Slurm that join a running job. Not more than needed; rights of an ordinary user suffice.

Which jobs there are is read from Slurm each time, by their name: another node may have submitted them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.allocation import Allocation
from deadpool.clusters.slurm.batch import spare_directives, spare_name, spare_script
from deadpool.clusters.slurm.client import JobFacts, SlurmError
from deadpool.clusters.slurm.options import words_for_spare, words_of_record
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.events.event import read_events

_LEAST_S = 180.0
"""The time left below which a new spare is not worth its start."""
_FIRST_S = 120.0
"""The time that the allocation's own spares have to join after the job's start."""
_AGAIN_S = 15.0
_LONGEST_S = 600.0
_PENDING = {"PENDING", "CONFIGURING"}


class SpareJobs:
    def __init__(
        self, allocation: Allocation, folder: RunFolder, *, wanted: int, say: Callable[[str, str], None]
    ) -> None:
        self._allocation, self._folder, self._wanted, self._say = allocation, folder, wanted, say
        self._submitted: set[str] = set()  # by this process, and not seen to have joined
        self._failures = 0
        self._not_before = 0.0  # by the monotonic clock

    def look(self, status: dict[str, Any], *, bad: set[str], ends_at: float | None) -> None:
        """`bad`: nodes that administrators take out."""
        members = {node["node"]: node for node in status["nodes"]}
        jobs = [each for each in client.own_jobs(spare_name(self._allocation.job_id)) if each.state != "COMPLETING"]
        coming = [each for each in jobs if each.node not in members]
        self._note_failures({each.job_id for each in jobs})
        usable = [name for name, node in members.items() if _is_usable(node) and name not in bad]
        to_go = sum(node["role"] == "active" for name, node in members.items() if name in bad)
        missing = self._wanted + to_go - len(usable) - len(coming) - self._expected(members)
        if missing < 0:
            self._cancel(coming, -missing)
        elif missing > 0 and self._may_submit(status, ends_at):
            for _ in range(missing):
                self._submit(exclude=set(members) | self._lost(members), ends_at=ends_at)

    def cancel_all(self) -> None:
        client.cancel([each.job_id for each in client.own_jobs(spare_name(self._allocation.job_id))])

    def _expected(self, members: Iterable[str]) -> int:
        """Spares of the allocation itself that have not joined yet, at the beginning."""
        described = self._folder.description() or {}
        if time.time() > described.get("began", 0.0) + _FIRST_S:
            return 0
        seen = self._joined() | set(members)
        return sum(host not in seen for host in self._allocation.hosts)

    def _may_submit(self, status: dict[str, Any], ends_at: float | None) -> bool:
        if status["phase"] in ("ended", "salvaging") or time.monotonic() < self._not_before:
            return False
        return ends_at is None or ends_at - time.time() > _LEAST_S

    def _submit(self, *, exclude: set[str], ends_at: float | None) -> None:
        described = self._folder.description() or {}
        left_s = ends_at - time.time() if ends_at is not None else None
        options = words_for_spare(self._options(described), exclude=exclude, seconds_left=left_s)
        run_dir, job_id = self._folder.path, self._allocation.job_id
        script = spare_script(run_dir, self._folder.attempt, described["srun"], described["folder"])
        try:
            new = client.submit(spare_directives(job_id, run_dir, options), script)
        except SlurmError as error:
            self._back_off()
            self._say("submit", f"no new spare, sbatch was refused on this node: {error}. The job goes on without it")
            raise
        self._submitted.add(new)
        self._say("submit", f"a spare is missing: job {new} was submitted for one")

    def _options(self, described: dict[str, Any]) -> list[str]:
        if described.get("options") is not None:
            return list(described["options"])
        return words_of_record(client.job_record(self._allocation.job_id))

    def _cancel(self, coming: list[JobFacts], count: int) -> None:
        """First those that have not started."""
        ordered = sorted(coming, key=lambda each: each.state not in _PENDING)[:count]
        if ordered:
            self._say("submit", f"no spare is missing any more: {', '.join(e.job_id for e in ordered)} was cancelled")
            self._submitted -= {each.job_id for each in ordered}
            client.cancel([each.job_id for each in ordered])

    def _note_failures(self, known: set[str]) -> None:
        """A job that ended before its node was seen here, again and again, is not submitted at once again."""
        joined = self._joined()
        for job_id in sorted(self._submitted - known):
            self._submitted.discard(job_id)
            facts = client.job(job_id)
            if facts is None or facts.node not in joined:
                self._back_off()

    def _back_off(self) -> None:
        self._failures += 1
        self._not_before = time.monotonic() + min(_LONGEST_S, _AGAIN_S * 2 ** (self._failures - 1))

    def _joined(self) -> set[str]:
        return {event["node"] for event in self._events() if event["what"] == "joined"}

    def _lost(self, members: Iterable[str]) -> set[str]:
        """Nodes that were in the job and did not leave it in order."""
        gone: set[str] = set()
        for event in self._events():
            if event["what"] == "joined":
                gone.add(event["node"])
            elif event["what"] == "left":
                gone.discard(event["node"])
        return gone - set(members)

    def _events(self) -> list[dict[str, Any]]:
        return read_events(self._folder.run_dir.events)


def _is_usable(node: dict[str, Any]) -> bool:
    return node["role"] == "spare" and not node["quarantined"]
