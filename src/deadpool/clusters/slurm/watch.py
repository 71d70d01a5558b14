"""What is looked after while a job runs under Slurm: nodes, new spares, and the end of its allocation.

`JobWatch` runs beside every coordinator, and does something only where that one acts. Nodes that an administrator or a
health check drains or fails in Slurm give their ranks to a spare; Slurm tells a running job nothing of that, so its
nodes' states are read. New spares are one-node jobs of Slurm that join a running job: not more than needed; rights of
an ordinary user suffice. Which jobs there are is read from Slurm each time, by their name: another node may have
submitted them.

The end of the allocation is announced to the training script, durable checkpoints are written before it, and the job is
requeued if that was asked for. It is read from Slurm, not from a signal to the batch script: the batch host may be
gone. A preemption with a grace time looks the same, as an end that has come near; then Slurm requeues by itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.batch import spare_directives, spare_name, spare_script
from deadpool.clusters.slurm.client import JobFacts, SlurmError
from deadpool.clusters.slurm.options import Allocation, words_for_spare, words_of_record
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.control.console import print_line
from deadpool.control.coordinator.announcement import ask
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError, DeadPoolError
from deadpool.events.event import read_events
from deadpool.host.private_files import open_private

TAKEN_OUT = {"draining", "drained", "drain", "failing", "fail", "maint"}

_LEAST_S = 180.0
"""The time left below which a new spare is not worth its start."""
_FIRST_S = 120.0
"""The time that the allocation's own spares have to join after the job's start."""
_AGAIN_S = 15.0
_LONGEST_S = 600.0
_PENDING = {"PENDING", "CONFIGURING"}


class AdminDrains:
    def __init__(self, run_dir: RunDir, *, say: Callable[[str, str], None]) -> None:
        self._run_dir, self._say = run_dir, say

    def look(self, status: dict[str, Any]) -> set[str]:
        """Drains one node of those that are to go. Returns all of them."""
        members = [node["node"] for node in status["nodes"]]
        states = client.node_states(members)
        bad = {node for node, state in states.items() if state in TAKEN_OUT}
        if status["drain"] is None:
            for node in status["nodes"]:
                if node["node"] in bad and node["role"] != "leaving" and self._drain(node["node"], status, bad):
                    break
        return bad

    def _drain(self, name: str, status: dict[str, Any], bad: set[str]) -> bool:
        """Drains a node, but never onto a spare that is to go itself."""
        roles = {node["node"]: node["role"] for node in status["nodes"]}
        healthy = [node for node, role in roles.items() if role == "spare" and node not in bad]
        if roles[name] != "spare" and not healthy:
            self._say(f"drain {name}", f"node {name} is drained in Slurm and waits for a spare")
            return False
        try:
            ask(self._run_dir, "drain", node=name)
        except ConfigError as refusal:
            self._say(f"drain {name}", str(refusal))
            return False
        self._say(f"drain {name}", f"node {name} is drained in Slurm: a spare takes its ranks")
        return True


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
