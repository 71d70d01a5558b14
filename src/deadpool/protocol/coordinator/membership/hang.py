"""A job that hangs: noticing that no rank completes a step, and finding the rank that is at fault.

The abort is the diagnosis. A rank that waits for another rank comes to rest, and a rank that is waited for does not. So
a hang is at first a fault of no node, and what agents find while they unwind names the rank.

A step that takes long is a hang at once if most ranks say that they wait for others, and the others, on one node, do
nothing at all: then no rank computes, compiles, evaluates, reads its data or writes a checkpoint. Where some rank is
busy, a hang takes much longer to be believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.messages import Heartbeat

HANG_AT_LEAST_S = 60.0
HANG_STEPS = 10
"""Where the user gave no limit, a hang is so many times the slowest recent step without a completed one, and at least
HANG_AT_LEAST_S."""

IDLE_AT_LEAST_S = 5.0
IDLE_STEPS = 5
"""If every rank waits or is idle, a hang is so many times the 99th percentile of recent steps, and at least
IDLE_AT_LEAST_S."""

IDLE_AGAIN = 4
"""Idle ranks may wait for something outside the job that takes its time. If the step that was redone comes to a
standstill too, the next one may last so many times as long."""

_ENOUGH = 10
"""Steps that have to be known before any of them is taken to be late."""

LATE_S = 1.0
"""A step is late if it lasts so much longer than the slowest recent ones. What follows from that costs little."""

LATE_AT_FIRST_S = 3.0
"""A step is late if it lasts so long, while few are known."""

HANG_FIRST_STEPS = 3
"""A first step may compile. It may take so many times as long as the slowest first step of this job did."""

_RECENT = 100


class HangMonitor:
    def __init__(self, job: JobState) -> None:
        self._job = job
        self._detector = HangDetector(job.deadlines.hang_s, job.layout.world_size, job.layout.per_node)
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
        self._detector.on_idle((rank for rank, _ in beat.steps), waiting=beat.waiting, idle=beat.idle)

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

    @property
    def all_have_stepped(self) -> bool:
        """The job runs, and every process has completed a step."""
        return self._job.phase is Phase.RUNNING and self._detector.is_warm

    def is_late(self, now: float) -> bool:
        """No step for longer than a slow one takes. That is no hang yet, and worth a look at the network."""
        return not self._paused_nodes and self._detector.is_late(now)

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
    nobody_works: bool = False

    @property
    def reason(self) -> str:
        idle = ", and no rank does anything" if self.nobody_works else ""
        return f"no step for {self.seconds:.0f} s{idle}; behind: ranks {', '.join(map(str, self.behind))}"


class HangDetector:
    """Watches completed steps while the job runs. It only says that no rank gets further.

    How long a step takes is read from the same reports: the time between two of them in which some rank got further.
    """

    def __init__(self, hang_s: float, world_size: int, per_node: int = 1) -> None:
        self._given_s, self._ranks, self._per_node = hang_s, range(world_size), per_node
        self._steps: dict[int, int] = {}
        self._warm = 0  # ranks that have completed a step
        self._since = 0.0
        self._reported = False
        self._recent_s: deque[float] = deque(maxlen=_RECENT)
        self._pace = RankPace()
        self._waiting: set[int] = set()
        self._idle: set[int] = set()
        self._idle_hangs = 0  # since a step was completed that had not been completed before
        self._furthest = 0  # the last step that was completed, in any generation
        self._seen_from_go = False
        self._first_s = 0.0  # the longest time without progress in the first steps that are under way
        self._slowest_first_s: float | None = None  # in this job; None: this coordinator has seen none

    @property
    def limit_s(self) -> float:
        return self._given_s or max(HANG_AT_LEAST_S, HANG_STEPS * max(self._recent_s, default=0.0))

    @property
    def first_limit_s(self) -> float:
        """Returns the limit while some process has not completed its first step."""
        return self._given_s or max(self.limit_s, HANG_FIRST_STEPS * (self._slowest_first_s or 0.0))

    def start(self, now: float, *, from_go: bool = True) -> None:
        """The job runs from here on. Not `from_go`: it ran already under an earlier coordinator, and this one does not
        know how long first steps have taken."""
        self._steps, self._warm, self._since, self._reported = {}, 0, now, False
        self._seen_from_go, self._first_s = from_go, 0.0
        self._pace.start()
        self._waiting.clear()
        self._idle.clear()

    def discount_stall(self, seconds: float) -> None:
        self._since += seconds

    def on_steps(self, steps: Iterable[tuple[int, int]], now: float) -> None:
        """Takes note of the steps of some ranks. It is progress if any of them is elsewhere than it was."""
        known = self._steps
        news = [(rank, step) for rank, step in steps if known.get(rank) != step]
        if not news:
            return
        if self.is_warm:
            done = max(1, *(step - known.get(rank, step) for rank, step in news))
            self._recent_s.append((now - self._since) / done)  # no report for a while may be many steps
        else:
            self._on_first_steps(news, now)
        known.update(news)
        self._since, self._reported = now, False
        if self.is_warm:
            self._pace.on_steps(news, now)
        furthest = max(step for _, step in news)
        if furthest > self._furthest:
            self._furthest, self._idle_hangs = furthest, 0

    def on_idle(self, ranks: Iterable[int], *, waiting: Iterable[int], idle: Iterable[int]) -> None:
        """Takes note of which of `ranks` wait for others and which do nothing. The rest is busy."""
        ranks = list(ranks)
        self._waiting.difference_update(ranks)
        self._waiting.update(waiting)
        self._idle.difference_update(ranks)
        self._idle.update(idle)

    def _on_first_steps(self, news: list[tuple[int, int]], now: float) -> None:
        if self._all_in_loop():  # else this time was no step: processes were building and loading
            self._first_s = max(self._first_s, now - self._since)
        self._warm += sum(bool(step) - bool(self._steps.get(rank)) for rank, step in news)
        if self.is_warm and self._seen_from_go:
            self._slowest_first_s = max(self._slowest_first_s or 0.0, self._first_s)

    def detect(self, now: float, *, paused: bool) -> Standstill | None:
        """Reported once per standstill. While ranks are `paused` no step is expected, so this time does not count."""
        if paused:
            self._since = now
        still_s = now - self._since
        if not self._reported and self._nobody_works() and still_s >= self._idle_limit_s:
            self._reported = True
            self._idle_hangs += 1
            behind = tuple(sorted(self._idle)) or self._behind()
            return Standstill(seconds=still_s, behind=behind, is_hang=True, nobody_works=True)
        if self._reported or (not self._given_s and still_s < HANG_AT_LEAST_S) or still_s < self._present_limit_s:
            return None
        self._reported = True
        return Standstill(seconds=still_s, behind=self._behind(), is_hang=self._can_hang())

    def is_late(self, now: float) -> bool:
        still_s = now - self._since
        if still_s < LATE_S:
            return False  # most calls end here
        return still_s >= (self._pace.slow_step_s + LATE_S if self._pace.is_known else LATE_AT_FIRST_S)

    def _nobody_works(self) -> bool:
        """A limit that the user gave holds whatever ranks do, and first steps are no measure. Idle ranks on several
        nodes, or more than wait for them, may have a reason that is none of the job's, such as slow storage."""
        if self._given_s or not self.is_warm or not self._pace.is_known:
            return False
        nodes = {rank // self._per_node for rank in self._idle}
        all_counted = len(self._idle) + len(self._waiting) == len(self._ranks)
        return all_counted and len(nodes) <= 1 and len(self._idle) <= len(self._waiting)

    @property
    def _idle_limit_s(self) -> float:
        limit_s = max(IDLE_AT_LEAST_S, IDLE_STEPS * self._pace.slow_step_s)
        return limit_s * float(IDLE_AGAIN**self._idle_hangs)

    @property
    def _present_limit_s(self) -> float:
        return self.limit_s if self.is_warm else self.first_limit_s

    @property
    def is_warm(self) -> bool:
        """Every process has completed a step: the next ones take as long."""
        return self._warm == len(self._ranks)

    def _can_hang(self) -> bool:
        """A limit that the user gave, or that earlier first steps of this job have given, holds for first steps too,
        but not before they begin."""
        knows_first_steps = bool(self._given_s) or self._slowest_first_s is not None
        return self.is_warm or (knows_first_steps and self._all_in_loop())

    def _all_in_loop(self) -> bool:
        return len(self._steps) == len(self._ranks)  # not one by one: this is asked at every heartbeat after Go

    def _behind(self) -> tuple[int, ...]:
        furthest_back = min(self._steps.get(rank, -1) for rank in self._ranks)
        return tuple(rank for rank in self._ranks if self._steps.get(rank, -1) == furthest_back)


class RankPace:
    """How long the steps of one rank take, as heartbeats show it. Any rank will do, because steps end together; the
    reports of all ranks together would show the time between two nodes' heartbeats."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._step = 0
        self._since: float | None = None
        self._recent_s: deque[float] = deque(maxlen=_RECENT)

    def start(self) -> None:
        """What comes before the next report was no step."""
        self._since = None

    def on_steps(self, news: Iterable[tuple[int, int]], now: float) -> None:
        steps = dict(news)
        self._rank = min(steps) if self._rank is None else self._rank
        if self._rank not in steps:
            return
        done, self._step = steps[self._rank] - self._step, steps[self._rank]
        if self._since is not None:
            self._recent_s.append((now - self._since) / max(1, done))
        self._since = now

    @property
    def is_known(self) -> bool:
        return len(self._recent_s) >= _ENOUGH

    @property
    def slow_step_s(self) -> float:
        """The 99th percentile of recent steps."""
        ordered = sorted(self._recent_s)
        return ordered[max(0, round(0.99 * len(ordered)) - 1)]
