"""A job that stands still: noticing it, and finding who is at fault.

The abort is the diagnosis: who waits for somebody else comes to rest, who is waited for does not. So a hang is a fault
of nobody's at first, and what agents find in the unwinding names the rank. When nothing moves, `progress.py` says so.
"""

from __future__ import annotations

from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.progress import HangWatch, Standstill
from deadpool.protocol.messages import Heartbeat


class Hangs:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._watch = HangWatch(job.deadlines.hang_s, job.layout.world_size)
        self._paused_nodes: set[str] = set()  # some rank of theirs says that it pauses
        self._cause: str | None = None  # the fault that was a hang, while it is looked for who is at fault
        self._suspected = False  # nobody was found yet

    # --- while the job runs ------------------------------------------------------------------------------------------

    def begin(self, now: float, *, from_go: bool) -> None:
        self._watch.begin(now, from_go=from_go)
        self._paused_nodes.clear()

    def excuse(self, seconds: float) -> None:
        self._watch.excuse(seconds)

    def hear(self, member: Member, beat: Heartbeat, now: float) -> None:
        if beat.paused or member.paused:
            self._note_pauses(member, dict(beat.paused))
        self._watch.hear(beat.steps, now)

    def _note_pauses(self, member: Member, paused: dict[int, str]) -> None:
        for rank in sorted(paused.keys() - member.paused.keys()):
            self._job.out.emit("paused", node=member.node, rank=rank, reason=paused[rank])
        member.paused = paused
        (self._paused_nodes.add if paused else self._paused_nodes.discard)(member.node)

    def look(self, now: float) -> Standstill | None:
        """The hang, if it is one."""
        if self._job.phase is not Phase.RUNNING or self._job.released:
            return None
        still = self._watch.look(now, paused=bool(self._paused_nodes))
        if still is None or still.is_hang:
            return still
        self._job.out.emit("slow_start", ranks=list(still.behind), seconds=round(still.seconds))
        return None

    # --- while it is unwound -----------------------------------------------------------------------------------------

    def suspect(self) -> None:
        """The present fault is one that nobody was lost in."""
        self._suspected, self._cause = True, self._job.cause

    def clear(self) -> None:
        """The present fault has another reason."""
        self._suspected, self._cause = False, None

    def found(self, node: str, rank: int, found: str) -> bool:
        """Whether that is what the present fault is about."""
        self._suspected = False
        self._job.out.emit("hung", node=node, rank=rank, found=found)
        return self._cause == self._job.cause

    def acquit(self) -> None:
        """All have come to rest."""
        if self._suspected:
            self._suspected = False
            self._job.out.emit("no_rank_hung", reason="every rank came to rest: a collective was stuck")
