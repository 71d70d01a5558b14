"""A job that hangs: noticing that no rank completes a step, and finding the rank that is at fault.

The abort is the diagnosis. A rank that waits for another rank comes to rest, and a rank that is waited for does not. So
a hang is at first a fault of no node, and what agents find while they unwind names the rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.messages import Heartbeat

HANG_AT_LEAST_S = 60.0
HANG_STEPS = 10
"""Where the user gave no limit, a hang is so many times the slowest recent step without a completed one, and at least
HANG_AT_LEAST_S."""

HANG_FIRST_STEPS = 3
"""A first step may compile. It may take so many times as long as the slowest first step of this job did."""

_RECENT = 100


class HangMonitor:
    def __init__(self, job: JobState) -> None:
        self._job = job
        self._detector = HangDetector(job.deadlines.hang_s, job.layout.world_size)
        self._paused_nodes: set[str] = set()  # some rank of theirs says that it pauses
        self._cause: str | None = None  # the fault that was a hang, while the rank at fault is looked for
        self._suspected = False  # the present fault is a hang, and no rank was found yet

    # --- while the job runs -------------------------------------------------------------------------------------------

    def start(self, now: float, *, from_go: bool) -> None:
        self._detector.start(now, from_go=from_go)
        self._paused_nodes.clear()

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: the coordinator itself did not run for so long."""
        self._detector.discount_stall(seconds)

    def on_heartbeat(self, member: Member, beat: Heartbeat, now: float) -> None:
        if beat.paused or member.paused:
            self._note_pauses(member, dict(beat.paused))
        self._detector.on_steps(beat.steps, now)

    def _note_pauses(self, member: Member, paused: dict[int, str]) -> None:
        for rank in sorted(paused.keys() - member.paused.keys()):
            self._job.out.emit("paused", node=member.node, rank=rank, reason=paused[rank])
        member.paused = paused
        (self._paused_nodes.add if paused else self._paused_nodes.discard)(member.node)

    def detect(self, now: float) -> Standstill | None:
        """The hang, if there is one."""
        if self._job.phase is not Phase.RUNNING or self._job.released:
            return None
        still = self._detector.detect(now, paused=bool(self._paused_nodes))
        if still is None or still.is_hang:
            return still
        self._job.out.emit("slow_start", ranks=list(still.behind), seconds=round(still.seconds))
        return None

    # --- while it is unwound ------------------------------------------------------------------------------------------

    def begin_search(self) -> None:
        """The present fault is a hang: the rank at fault is not known yet."""
        self._suspected, self._cause = True, self._job.cause

    def end_search(self) -> None:
        """The present fault has another reason."""
        self._suspected, self._cause = False, None

    def on_found(self, node: str, rank: int, found: str) -> bool:
        """An agent found this rank hung. Returns whether that is what the present fault is about."""
        self._suspected = False
        self._job.out.emit("hung", node=node, rank=rank, found=found)
        return self._cause == self._job.cause

    def on_all_at_rest(self) -> None:
        """Every rank has come to rest: none of them was at fault."""
        if self._suspected:
            self._suspected = False
            self._job.out.emit("no_rank_hung", reason="every rank came to rest: a collective was stuck")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """No rank has completed a step for as long as a hang takes."""

    seconds: float
    behind: tuple[int, ...]  # all of them, if all are in the same step
    is_hang: bool  # False: a first step may be slow, some process has not completed one, and none was seen before

    @property
    def reason(self) -> str:
        return f"no step for {self.seconds:.0f} s; behind: ranks {', '.join(map(str, self.behind))}"


class HangDetector:
    """Watches completed steps while the job runs. It only says that no rank gets further.

    How long a step takes is read from the same reports: the time between two of them in which some rank got further.
    """

    def __init__(self, hang_s: float, world_size: int) -> None:
        self._given_s, self._ranks = hang_s, range(world_size)
        self._steps: dict[int, int] = {}
        self._warm = 0  # ranks that have completed a step
        self._since = 0.0
        self._reported = False
        self._recent_s: deque[float] = deque(maxlen=_RECENT)
        self._seen_from_go = False
        self._first_s = 0.0  # the longest time without progress in the first steps that are under way
        self._slowest_first_s: float | None = None  # in this job; None: this coordinator has seen none

    @property
    def limit_s(self) -> float:
        return self._given_s or max(HANG_AT_LEAST_S, HANG_STEPS * max(self._recent_s, default=0.0))

    @property
    def first_limit_s(self) -> float:
        """While some process has not completed its first step."""
        return self._given_s or max(self.limit_s, HANG_FIRST_STEPS * (self._slowest_first_s or 0.0))

    def start(self, now: float, *, from_go: bool = True) -> None:
        """The job runs from here on. Not `from_go`: it ran already under an earlier coordinator, and this one does not
        know how long first steps have taken."""
        self._steps, self._warm, self._since, self._reported = {}, 0, now, False
        self._seen_from_go, self._first_s = from_go, 0.0

    def discount_stall(self, seconds: float) -> None:
        self._since += seconds

    def on_steps(self, steps: Iterable[tuple[int, int]], now: float) -> None:
        """Of some ranks. It is progress if any of them is elsewhere than it was."""
        known = self._steps
        news = [(rank, step) for rank, step in steps if known.get(rank) != step]
        if not news:
            return
        if self._is_warm():
            self._recent_s.append(now - self._since)
        else:
            self._on_first_steps(news, now)
        known.update(news)
        self._since, self._reported = now, False

    def _on_first_steps(self, news: list[tuple[int, int]], now: float) -> None:
        if self._all_in_loop():  # else this time was no step: processes were building and loading
            self._first_s = max(self._first_s, now - self._since)
        self._warm += sum(bool(step) - bool(self._steps.get(rank)) for rank, step in news)
        if self._is_warm() and self._seen_from_go:
            self._slowest_first_s = max(self._slowest_first_s or 0.0, self._first_s)

    def detect(self, now: float, *, paused: bool) -> Standstill | None:
        """Reported once per standstill. While ranks are `paused` no step is expected, so this time does not count."""
        if paused:
            self._since = now
        still_s = now - self._since
        if self._reported or (not self._given_s and still_s < HANG_AT_LEAST_S) or still_s < self._present_limit_s:
            return None
        self._reported = True
        return Standstill(seconds=still_s, behind=self._behind(), is_hang=self._can_hang())

    @property
    def _present_limit_s(self) -> float:
        return self.limit_s if self._is_warm() else self.first_limit_s

    def _is_warm(self) -> bool:
        """Every process has completed a step: the next ones take as long."""
        return self._warm == len(self._ranks)

    def _can_hang(self) -> bool:
        """A limit that the user gave, or that earlier first steps of this job have given, holds for first steps too,
        but not before they begin."""
        knows_first_steps = bool(self._given_s) or self._slowest_first_s is not None
        return self._is_warm() or (knows_first_steps and self._all_in_loop())

    def _all_in_loop(self) -> bool:
        return all(rank in self._steps for rank in self._ranks)

    def _behind(self) -> tuple[int, ...]:
        furthest_back = min(self._steps.get(rank, -1) for rank in self._ranks)
        return tuple(rank for rank in self._ranks if self._steps.get(rank, -1) == furthest_back)
