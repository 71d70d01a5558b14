"""What protection a job should have now: a pure decision, from what nodes show and have done, within the user's bounds.

A node is *guarded* while it looks likely to fail: its ranks get one more holder, and spares rehearse them first. Its
hazard, in expected failures per hour, adds what its history says (`coordinator/protection/failure_rates.py`) to what
its signs say (`HAZARD`, a policy). These keep decisions from going back and forth (rule 28, protection changes
slowly and within bounds):

    two limits   a guard begins at GUARD_FROM and ends below GUARD_UNTIL
    dwell time   what was decided about one subject stays for `dwell_s`
    a budget     CHANGES within as many dwell times; the last of them are kept for what raises protection
    the crowd    a sign that most nodes show is the environment's: it says nothing about any of them
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deadpool.protocol.causes import CHANGES, AdaptiveBounds
from deadpool.protocol.coordinator.protection.failure_rates import PRIOR_PER_S
from deadpool.protocol.health import CERTAIN, DOUBTFUL, LIKELY, gravest, in_words
from deadpool.protocol.messages import Sign
from deadpool.protocol.schemes import Scheme

HAZARD = {DOUBTFUL: 0.02, LIKELY: 0.2, CERTAIN: 1.0}
"""Assumed failures per hour of a node whose gravest sign has this grade."""
GUARD_FROM = 0.05
GUARD_UNTIL = GUARD_FROM / 4
KEPT_FOR_DANGER = 2
"""Changes of the budget that only what raises protection may use."""
COMMIT_ROOM = 2.0
"""How many times as long as now a version may take to be committed, at least, before one more holder is given."""
INTERVAL = "the capture interval"
ENVIRONMENT = "the environment"
PLACEMENT = "the placement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of one node. Zeros mean that it is not known yet."""

    node: str = ""
    total: int = 0
    available: int = 0
    copies: int = 0
    own: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A node that shows a sign, has failed before, or is guarded."""

    node: str
    position: int | None  # None: it has no seat
    signs: tuple[Sign, ...] = ()
    per_hour: float = 0.0  # what its history alone says
    failures: Mapping[str, int] = field(default_factory=dict)  # by kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """All that a decision may be made from."""

    suspects: tuple[Suspect, ...]
    positions: int
    scheme: Scheme  # of every rank, at least
    asked: Scheme | None = None  # the one that the user asks for; None: it is the present one
    spares: int  # that could take a seat
    memory: Sequence[Memory] = ()  # by position; empty: not known
    commit_room: float = math.inf  # how many times as long as now a commit may take before a slot is missing
    every: int = 1  # the present interval
    least_every: int = 1  # the user's lower bound
    stall_s: float = 0.0  # per capture
    step_s: float = 0.0
    is_full: bool = True  # every position has a node of its own
    is_settled: bool = False  # nothing else is under way, and every version is protected


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    subject: str  # a node, or what else was decided about
    value: str  # what holds of it from now on
    reason: str  # one sentence
    raises: bool = True  # protection; False: it lowers it


GUARDED, UNGUARDED, EVICTED = "guarded", "unguarded", "evicted"


class Pacing:
    """Decides when something may change again: it counts dwell times per subject, and the budget of all."""

    def __init__(self, bounds: AdaptiveBounds) -> None:
        self._bounds = bounds
        self._changed_at: dict[str, float] = {}
        self._spent: list[float] = []

    def allows(self, subject: str, now: float, *, raises: bool) -> bool:
        return self._has_dwelt(subject, now) and self._has_budget(now, raises)

    def _has_dwelt(self, subject: str, now: float) -> bool:
        at = self._changed_at.get(subject)
        return at is None or now - at >= self._bounds.dwell_s

    def stayed_s(self, subject: str, now: float) -> float:
        """Returns the time since the last change."""
        return now - self._changed_at.get(subject, -math.inf)

    def _has_budget(self, now: float, raises: bool) -> bool:
        spent = [at for at in self._spent if now - at < self._bounds.changes_within_s]
        return len(spent) < (CHANGES if raises else CHANGES - KEPT_FOR_DANGER)

    def spend(self, subject: str, now: float) -> None:
        self._spent = [at for at in self._spent if now - at < self._bounds.changes_within_s]
        self._spent.append(now)
        self.start_dwelling(subject, now)

    def start_dwelling(self, subject: str, now: float) -> None:
        self._changed_at[subject] = now

    def discount_stall(self, seconds: float) -> None:
        self._changed_at = {subject: at + seconds for subject, at in self._changed_at.items()}
        self._spent = [at + seconds for at in self._spent]


class Adaptation:
    """Keeps what was decided; `decide` says what changes now."""

    def __init__(self, bounds: AdaptiveBounds) -> None:
        self.bounds = bounds
        self.pacing = Pacing(bounds)
        self.guarded: dict[str, str] = {}  # node -> why
        self.shared: frozenset[str] = frozenset()  # kinds of signs that most nodes show
        self._evicted: set[str] = set()
        self.every = 0  # the least interval; 0: the user's

    def adopt(self, guarded: Sequence[str], now: float) -> None:
        """What a successor finds: the coordinator before it has guarded these, it is not known since when."""
        for node in guarded:
            self.guarded[node] = "the coordinator before has guarded it"
            self.pacing.start_dwelling(node, now)

    def decide(self, outlook: Outlook, now: float) -> list[Change]:
        changes = self._note_environment(outlook, now)
        suspects = [self._without_shared_signs(each) for each in outlook.suspects]
        changes += self._evict(suspects, outlook, now)
        leaving = [change.subject for change in changes if change.value == EVICTED]
        for suspect in sorted(suspects, key=lambda each: (-self.hazard(each), each.node)):
            if suspect.node not in leaving:
                changes += self._guard(suspect, outlook, now)
        return changes + self._choose_interval(suspects, outlook, now)

    # --- what a sign says --------------------------------------------------------------------------------------------

    def hazard(self, suspect: Suspect) -> float:
        """Expected failures per hour."""
        return suspect.per_hour + HAZARD.get(gravest(suspect.signs), 0.0)

    def is_in_danger(self, suspect: Suspect) -> bool:
        return self.hazard(suspect) >= GUARD_FROM

    def _without_shared_signs(self, suspect: Suspect) -> Suspect:
        if not self.shared:
            return suspect
        own = tuple(sign for sign in suspect.signs if sign.kind not in self.shared)
        return Suspect(
            node=suspect.node,
            position=suspect.position,
            signs=own,
            per_hour=suspect.per_hour,
            failures=suspect.failures,
        )

    def _note_environment(self, outlook: Outlook, now: float) -> list[Change]:
        """A sign of more than half of the seats. It ends when at most a quarter of them show it."""
        seated = [each for each in outlook.suspects if each.position is not None]
        shown = Counter(kind for each in seated for kind in {sign.kind for sign in each.signs})
        most = {kind for kind, count in shown.items() if 2 * count > outlook.positions and count > 1}
        still = {kind for kind in self.shared if 4 * shown[kind] > outlook.positions}
        before, self.shared = self.shared, frozenset(most | still)
        new = sorted(most - before)
        if not new or not self.pacing.allows(ENVIRONMENT, now, raises=True):
            return []
        counted = ", ".join(f"{shown[kind]} of {outlook.positions} nodes show {kind}" for kind in new)
        reason = f"{counted}: that is the environment, and no node is guarded or moved for it"
        return [self._change(ENVIRONMENT, ",".join(sorted(self.shared)), reason, now)]

    # --- guards ------------------------------------------------------------------------------------------------------

    def _guard(self, suspect: Suspect, outlook: Outlook, now: float) -> list[Change]:
        node, hazard = suspect.node, self.hazard(suspect)
        if node not in self.guarded and self.is_in_danger(suspect) and suspect.position is not None:
            return self._begin_guard(suspect, outlook, now)
        if node in self.guarded and hazard < GUARD_UNTIL and self.pacing.allows(node, now, raises=False):
            before = self.guarded.pop(node)
            reason = f"{node} has looked well for a while ({before}): its ranks are protected as all others"
            return [self._change(node, UNGUARDED, reason, now, raises=False)]
        return []

    def _begin_guard(self, suspect: Suspect, outlook: Outlook, now: float) -> list[Change]:
        if not self.pacing.allows(suspect.node, now, raises=True):
            return []
        why = f"{suspect.node} {self._why(suspect)}"
        self.guarded[suspect.node] = why
        no_holder = self.refusal_of_holder(suspect, outlook)
        held = "its ranks are held once more" if no_holder is None else f"no further holder, since {no_holder}"
        rehearsed = "a spare rehearses them" if outlook.spares else "there is no spare that could rehearse them"
        return [self._change(suspect.node, GUARDED, f"{why}: {held}, and {rehearsed}", now)]

    def _why(self, suspect: Suspect) -> str:
        signs = [in_words(sign, self.bounds.dwell_s) for sign in suspect.signs]
        failed = [f"{count} {kind} failure{'s' if count > 1 else ''}" for kind, count in suspect.failures.items()]
        return " and ".join([*signs, *([f"has had {', '.join(failed)}"] if failed else [])])

    def refusal_of_holder(self, suspect: Suspect, outlook: Outlook) -> str | None:
        """Why the ranks of this node get no further holder; None: they do."""
        if outlook.scheme.in_groups:
            return f"snapshots are coded as {outlook.scheme}, whose groups have no holders of one rank"
        if not outlook.is_full:
            return "the job has shrunk, and carried ranks have the holders that its nodes allow"
        if outlook.scheme.copies >= min(self.bounds.copies_at_most, outlook.positions - 1):
            return f"{outlook.scheme} is all that is allowed or possible"
        if outlook.commit_room < COMMIT_ROOM:
            return f"versions would take too long to be committed: there is {outlook.commit_room:.1f} times the time"
        if suspect.position is None or not outlook.memory:
            return None
        own = outlook.memory[suspect.position].own
        rooms = [each for p, each in enumerate(outlook.memory) if p != suspect.position and self._has_room(each, own)]
        if len(rooms) > outlook.scheme.copies:
            return None
        return (
            f"too few nodes have room for {own / 2**20:.0f} MiB within {self.bounds.memory_share:.0%} of their memory"
        )

    def _has_room(self, memory: Memory, more: int) -> bool:
        if not memory.total:
            return True
        within = memory.copies + more <= self.bounds.memory_share * memory.total
        return within and more <= memory.available

    # --- the interval ------------------------------------------------------------------------------------------------

    def _choose_interval(self, suspects: Sequence[Suspect], outlook: Outlook, now: float) -> list[Change]:
        """The interval at which captures and redone steps together cost least (Young's formula), as a power of two
        times the user's, within the bounds. What captures may cost at most is decided in `interval.py`."""
        if self.bounds.every_at_most <= outlook.least_every or outlook.step_s <= 0:
            return []
        wanted = self._best_interval(suspects, outlook)
        now_every = self.every or outlook.least_every
        if wanted == now_every or (
            wanted > now_every and wanted < 4 * now_every and wanted < self.bounds.every_at_most
        ):
            return []
        narrower = wanted < now_every
        if not self.pacing.allows(INTERVAL, now, raises=narrower):
            return []
        self.every = wanted
        per_hour = self._job_per_hour(suspects, outlook)
        reason = (
            f"{per_hour:.3g} failures per hour are to be expected and a capture costs {1e3 * outlook.stall_s:.1f} ms: "
            f"a snapshot every {wanted} steps loses least"
        )
        return [self._change(INTERVAL, str(wanted), reason, now, raises=narrower)]

    def _best_interval(self, suspects: Sequence[Suspect], outlook: Outlook) -> int:
        per_s = self._job_per_hour(suspects, outlook) / 3600
        best = math.sqrt(2 * outlook.stall_s / per_s) / outlook.step_s if per_s > 0 else math.inf
        every = outlook.least_every
        while 2 * every <= min(best, self.bounds.every_at_most):
            every *= 2
        return every

    def _job_per_hour(self, suspects: Sequence[Suspect], outlook: Outlook) -> float:
        seated = [each for each in suspects if each.position is not None]
        return sum(map(self.hazard, seated)) + 3600 * PRIOR_PER_S * (outlook.positions - len(seated))

    # --- eviction ----------------------------------------------------------------------------------------------------

    def _evict(self, suspects: Sequence[Suspect], outlook: Outlook, now: float) -> list[Change]:
        """Rule 29, ill nodes leave one at a time. The last spare is for a node that has failed, not for one that only
        looks as if it might."""
        if not self.bounds.evict_ill or not outlook.is_settled:
            return []
        seated = [each for each in suspects if each.position is not None and self._may_be_tried(each.node, now)]
        ill = [each for each in seated if self._is_to_leave(each, outlook)]
        if not ill or not self.pacing.allows(EVICTED, now, raises=True):
            return []
        worst = max(ill, key=lambda each: (gravest(each.signs), self.hazard(each)))
        self._evicted.add(worst.node)
        reason = f"{worst.node} {self._why(worst)}: it is drained before it fails"
        return [self._change(worst.node, EVICTED, reason, now, also=EVICTED)]

    def _may_be_tried(self, node: str, now: float) -> bool:
        """One that was evicted and still sits, since its drain failed, is not tried again right after a guard."""
        return node not in self._evicted or self.pacing.allows(node, now, raises=True)

    def _is_to_leave(self, suspect: Suspect, outlook: Outlook) -> bool:
        grade = gravest(suspect.signs)
        enough = 1 if grade >= CERTAIN else 2
        return grade >= LIKELY and outlook.spares >= enough

    def _change(
        self, subject: str, value: str, reason: str, now: float, *, raises: bool = True, also: str = ""
    ) -> Change:
        self.pacing.spend(subject, now)
        if also:
            self.pacing.start_dwelling(also, now)
        return Change(subject=subject, value=value, reason=reason, raises=raises)
