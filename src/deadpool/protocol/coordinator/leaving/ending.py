"""The end of a job: it completed, it failed, or it was abandoned after what is left of it was written to disk.

This module chooses which copies are written, and the agents choose where.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deadpool.protocol.causes import EndCause
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.recovery.global_plan import ClusterView
from deadpool.protocol.coordinator.recovery.planner import index_inventories
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Salvage, Salvaged, Shutdown


class Ending:
    def __init__(self, job: JobState, fallback: Fallback) -> None:
        self._job, self._fallback = job, fallback
        self.salvage = SalvageProgress(job)
        self._once_kept: tuple[EndCause, str, bool] | None = None  # cause, reason, whether failed
        self.shutdown = Shutdown(reason="", failed=False)  # what a node is told that joins after the end

    def end(self, cause: EndCause, reason: str, *, failed: bool) -> None:
        """`reason` says the cause to people."""
        out = self._job.out
        out.emit("failed" if failed else "completed", reason=reason)
        self.shutdown = Shutdown(reason=reason, failed=failed)
        out.send_each(self._job.members, self.shutdown)
        self._job.enter_without_deadline(Phase.ENDED)
        out.finish(cause, reason, failed=failed)

    def end_once_kept(self, cause: EndCause, reason: str, *, failed: bool) -> None:
        """All ranks have ended by themselves: what is committed by now is kept first, where something keeps it."""
        if not failed and self._once_kept is None:
            self._fallback.keep_last()
        self._once_kept = (cause, reason, failed)

    def end_if_kept(self) -> None:
        """Ends the job that all ranks have ended, unless something is still being kept."""
        if self._once_kept is not None and not self._fallback.is_busy:
            cause, reason, failed = self._once_kept
            self.end(cause, reason, failed=failed)

    def end_if(self, untenable: str | None) -> None:
        """`untenable` says what is wrong with the script's claim of replication; None: nothing is."""
        if untenable is not None:
            self.end(EndCause.REPLICAS_DIFFER, untenable, failed=True)

    def abandon(self, cause: EndCause, reason: str, now: float) -> None:
        """Every node is frozen, and there is no version to go on from."""
        if self.salvage.start(cause, reason, remaining_copies(self._job.view())):
            self._job.enter(Phase.SALVAGING, now, self._job.deadlines.prepare_s)
        else:
            self.end_salvage()

    def on_salvaged(self, node: str, message: Salvaged) -> None:
        self.salvage.on_salvaged(node, message)
        self.end_salvage_if_done()

    def end_salvage_if_done(self) -> None:
        if self.salvage.is_done:
            self.end_salvage()

    def end_salvage(self) -> None:
        """What is not written by now never will be."""
        summary = self.salvage.summary(self._fallback.advice())
        self.end(self.salvage.cause, summary, failed=True)


class SalvageProgress:
    def __init__(self, job: JobState) -> None:
        self._job = job
        self._pending: set[str] = set()
        self._folders: dict[str, str] = {}
        self._ranks: set[int] = set()
        self._failures: list[str] = []
        self.cause = EndCause.COPIES_LOST
        self._reason = ""
        self._version: Version | None = None

    def start(self, cause: EndCause, reason: str, copies: Iterable[RemainingCopy]) -> bool:
        """Returns whether there is anything to wait for."""
        self.cause, self._reason, out = cause, reason, self._job.out
        parts: dict[str, list[int]] = {}
        for copy in copies:
            parts.setdefault(copy.node, []).append(copy.rank)
            self._version = copy.version
        for node, ranks in parts.items():
            assert self._version is not None
            out.send(node, Salvage(generation=self._job.generation, version=self._version, ranks=tuple(ranks)))
            self._pending.add(node)
        if parts:
            out.emit("salvaging", step=self._version.number if self._version else None, nodes=list(parts))
        return bool(parts)

    def on_salvaged(self, node: str, salvaged: Salvaged) -> None:
        self._pending.discard(node)
        if salvaged.ranks:
            self._folders[node] = salvaged.folder
            self._ranks.update(salvaged.ranks)
        if salvaged.failure:
            self._failures.append(f"node {node}: {salvaged.failure}")
        failure = salvaged.failure or None
        self._job.out.emit("salvaged", node=node, ranks=list(salvaged.ranks), folder=salvaged.folder, failure=failure)

    def on_node_lost(self, node: str) -> None:
        if node in self._pending:
            self._pending.discard(node)
            self._failures.append(f"node {node} was lost")

    @property
    def is_done(self) -> bool:
        return not self._pending

    def summary(self, advice: str) -> str:
        return "; ".join([self._reason, *self._kept(), advice])

    def _kept(self) -> list[str]:
        late = [f"node {node} did not write in time" for node in sorted(self._pending)]
        failures = [f"not written: {', '.join(self._failures + late)}"] if self._failures or late else []
        if not self._ranks or self._version is None:
            return failures
        ranks = ", ".join(map(str, sorted(self._ranks)))
        folders = ", ".join(f"{folder} on {node}" for node, folder in sorted(self._folders.items()))
        kept = f"version {self._version.number} of rank {ranks} is kept in {folders} (see: deadpool durable salvage)"
        return [kept, *failures]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingCopy:
    """A copy that would be lost with the job."""

    node: str
    rank: int
    version: Version


def remaining_copies(view: ClusterView) -> tuple[RemainingCopy, ...]:
    """Returns a sealed copy of each rank that has one, of the version that most ranks have, and of those the newest."""
    index = index_inventories(view)
    ranks = range(view.layout.world_size)
    best = max(
        index.sealed_versions(),
        key=lambda v: (sum(bool(index.homes(r, v)) for r in ranks), v.number, v.generation),
        default=None,
    )
    if best is None:
        return ()
    keepers = [(rank, homes[0][0].node) for rank in ranks if (homes := index.fullest_first(rank, best))]
    return tuple(RemainingCopy(node=node, rank=rank, version=best) for rank, node in keepers)
