"""Protection that follows the health of nodes: collects what a decision needs, and carries decisions out.

The decisions themselves are `adaptation.py` and `chosen_scheme.py`, pure functions of values. A new placement takes
effect with a plan. Where protection rises or the scheme changes, all ranks are stopped at one version for it (a
reconfiguration, `drain.py`); where a guard ends, the next recovery is early enough: the gain is memory only.

A coordinator that takes over knows the signs again with the next heartbeats, and finds by the placement which nodes
were guarded. Lost with the coordinator before it are the failure history and the budget of changes. That is safe: no
protection goes below what the user asks for, a guard that was found stays for a whole dwell time, and quarantines are
kept by the nodes themselves.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorPart
from deadpool.protocol.features.adaptation.coordinator.adaptation import (
    EVICTED,
    GUARDED,
    INTERVAL,
    PLACEMENT,
    UNGUARDED,
    Adaptation,
    Change,
    Memory,
    Outlook,
    Suspect,
)
from deadpool.protocol.features.adaptation.coordinator.chosen_scheme import SCHEME, ChosenScheme
from deadpool.protocol.health import DOUBTFUL, LIKELY, SLOW, gravest, in_words
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.messages import Health, Sign
from deadpool.protocol.messages.progress import DETAIL_AT_MOST, SIGNS_AT_MOST

WINDOW_S = 600.0
"""The window over which agents count signs where the job says nothing else."""

SOUND_HEALTH = Health(signs=())
"""The health of a node that has told nothing else."""


class Protection(CoordinatorPart):
    def __init__(self, core: CoordinatorCore) -> None:
        self._job, self._monitor, self._history = core.job, core.monitor, core.history
        self._rehearsals, self._drains, self._requests = core.rehearsals, core.drains, core.requests
        self._scheme_changes = core.schemes
        bounds = core.job.settings.adaptive
        self.adaptation = Adaptation(bounds) if bounds is not None else None
        self._scheme = ChosenScheme(core, self.adaptation) if self.adaptation is not None else None
        self._told: dict[str, tuple[Member, Health]] = {}  # by node, and as which member it was told
        self._showing: set[str] = set()  # nodes with signs
        self._next_look = 0.0
        self._is_adopted = False  # what the placement of this coordinator's first look says was taken over

    def discount_stall(self, seconds: float) -> None:
        self._next_look += seconds
        if self.adaptation is not None:
            self.adaptation.pacing.discount_stall(seconds)

    # --- what nodes tell ---------------------------------------------------------------------------------------------

    def on_message(self, member: Member, message: FeatureMessage, now: float) -> None:
        if isinstance(message, Health):
            self._on_health(member, message)

    def health_of(self, member: Member) -> Health:
        """Returns its health as it was last told. A node that has joined anew has told nothing yet."""
        told = self._told.get(member.node)
        return told[1] if told is not None and told[0] is member else SOUND_HEALTH

    def _on_health(self, member: Member, health: Health) -> None:
        signs = tuple(replace(sign, detail=sign.detail[:DETAIL_AT_MOST]) for sign in health.signs[:SIGNS_AT_MOST])
        before, health = self.health_of(member), replace(health, signs=signs)
        self._told[member.node] = (member, health)
        member.doubted = bool(signs) and gravest(signs) >= LIKELY
        (self._showing.add if signs else self._showing.discard)(member.node)
        if self._scheme is not None:
            self._scheme.on_memory(_memory_of(member.node, health))
        if _grades(before.signs) == _grades(signs):
            return
        bounds = self._job.settings.adaptive
        window_s = bounds.dwell_s if bounds is not None else WINDOW_S
        told = "; ".join(in_words(sign, window_s) for sign in signs) or "shows no sign of illness any more"
        self._job.out.emit("health", node=member.node, grade=gravest(signs), reason=told)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Once per round: there may be thousands of nodes."""
        adaptation, scheme, job = self.adaptation, self._scheme, self._job
        if adaptation is None or scheme is None or now < self._next_look or not job.can_drain:
            return
        self._next_look = now + job.settings.heartbeat_s
        self._history.rates.begin(now)
        self._adopt_once(adaptation, scheme, now)
        suspects = self._suspects(now)
        may_choose_scheme = scheme.may_choose(now)
        if suspects or adaptation.bounds.every_at_most or adaptation.shared or may_choose_scheme:
            outlook = self._outlook(suspects, may_choose_scheme)
            # Whether a guard gets a further holder depends on the scheme: one look later that is the new one.
            for change in scheme.choose(outlook, now) or adaptation.decide(outlook, now):
                self._carry_out(change, outlook, now)
        self._place_anew(adaptation, now)

    def _adopt_once(self, adaptation: Adaptation, scheme: ChosenScheme, now: float) -> None:
        """A coordinator that takes over finds by the placement which nodes were guarded, and the scheme."""
        if self._is_adopted:
            return
        self._is_adopted = True
        adaptation.adopt(self._job.rehearsed_first, now)
        scheme.adopt(self._outlook([], may_choose_scheme=False), now)

    def _outlook(self, suspects: list[Suspect], may_choose_scheme: bool) -> Outlook:
        """What concerns all nodes and ranks is gathered only where a decision may need it: there may be thousands."""
        adaptation, job = self.adaptation, self._job
        assert adaptation is not None
        may_guard = any(each.node not in adaptation.guarded and adaptation.is_in_danger(each) for each in suspects)
        stall_s, step_s = self._costs() if adaptation.bounds.every_at_most else (0.0, 0.0)
        return Outlook(
            suspects=tuple(suspects),
            positions=job.layout.positions,
            scheme=job.scheme,
            asked=job.asked_scheme,
            spares=sum(each.is_spare and not (each.quarantined or each.doubted) for each in job.members.values()),
            memory=tuple(map(self._memory, job.seats)) if may_guard or may_choose_scheme else (),
            commit_room=self._commit_room() if may_guard else math.inf,
            every=job.commits.timetable.newest.every,
            least_every=self._monitor.interval_chooser.user_every,
            stall_s=stall_s,
            step_s=step_s,
            is_full=job.is_full,
            is_settled=self._drains.current is None and job.commits.protected,
        )

    def _memory(self, node: str) -> Memory:
        return _memory_of(node, self.health_of(self._job.members[node]))

    def _suspects(self, now: float) -> list[Suspect]:
        """All other nodes are sound: no time is spent on them."""
        assert self.adaptation is not None
        members, rates = self._job.members, self._history.rates
        slow = self._monitor.stragglers.known
        self._showing.intersection_update(members)
        names = [*sorted(self._showing), *rates.nodes, *self.adaptation.guarded, *slow]
        found = []
        for node in dict.fromkeys(names):
            member = members.get(node)
            signs = self.health_of(member).signs if member is not None else ()
            if node in slow:
                signs = (*signs, Sign(kind=SLOW, grade=DOUBTFUL, detail=f"{slow[node].factor:.1f} times the others"))
            seated = member is not None and not (member.leaving or member.quarantined)
            found.append(
                Suspect(
                    node=node,
                    position=member.position if member is not None and seated else None,
                    signs=signs,
                    per_hour=rates.per_hour(node, member.rack if member is not None else None, now),
                    failures=rates.counts(node, now),
                )
            )
        return found

    def _costs(self) -> tuple[float, float]:
        """Returns the costs of a capture and of a step, at the rank where captures cost most."""
        costs = [each for each in self._monitor.interval_chooser.costs.values() if each.stall_s is not None]
        worst = max(costs, key=lambda each: each.stall_s or 0.0, default=None)
        return (worst.stall_s or 0.0, worst.step_s) if worst is not None else (0.0, 0.0)

    def _commit_room(self) -> float:
        """How many times as long a commit may take before a slot is missing, at the widest interval that costs may
        lead to."""
        job = self._job
        costs = [each for each in self._monitor.interval_chooser.costs.values() if each.commit_s]
        slots, every = self._monitor.interval_chooser.slot_room.at_most - 1, job.commits.timetable.newest.every
        return min((slots * every * each.step_s / (each.commit_s or 1.0) for each in costs), default=math.inf)

    # --- what follows ------------------------------------------------------------------------------------------------

    def _carry_out(self, change: Change, outlook: Outlook, now: float) -> None:
        job, adaptation = self._job, self.adaptation
        assert adaptation is not None
        node = change.subject if change.value in (GUARDED, UNGUARDED, EVICTED) else None
        job.out.emit("protection", node=node, change=change.value, raises=change.raises, reason=change.reason)
        if change.subject == SCHEME and self._scheme is not None:
            self._scheme.carry_out(change, now)
        elif change.subject == INTERVAL:
            self._monitor.interval_chooser.set_least(adaptation.every)
        elif change.value == GUARDED:
            self._begin_guard(change.subject, outlook)
        elif change.value == UNGUARDED:
            job.rehearsed_first = [each for each in job.rehearsed_first if each != change.subject]
            job.held_once_more.discard(change.subject)
        elif change.value == EVICTED:
            self._evict(change, now)

    def _begin_guard(self, node: str, outlook: Outlook) -> None:
        assert self.adaptation is not None
        self._job.rehearsed_first.append(node)
        suspect = next(each for each in outlook.suspects if each.node == node)
        if self.adaptation.refusal_of_holder(suspect, outlook) is None:
            self._job.held_once_more.add(node)
        self._rehearsals.assign_all()

    def _evict(self, change: Change, now: float) -> None:
        """If it comes back, it is seated only where no other node is left."""
        self._job.out.emit("eviction", node=change.subject, reason=change.reason)
        if self._requests.drain(change.subject, change.reason, now) is None:
            self._history.quarantine.add(change.subject, f"evicted: {change.reason}")

    def _place_anew(self, adaptation: Adaptation, now: float) -> None:
        """Where some position is to have more holders than it has, or snapshots are to be protected in another way.
        Not more often than the dwell time."""
        job = self._job
        lacking = sorted(job.extra_holders - job.commits.placement.extra)
        if not lacking and not self._scheme_changes.is_outstanding:
            return
        if self._drains.current is not None or not job.commits.protected:
            return
        if not job.is_full:  # who was guarded before the job shrank keeps its further holder only where there is room
            return
        if adaptation.pacing.stayed_s(PLACEMENT, now) < adaptation.bounds.dwell_s:
            return
        adaptation.pacing.start_dwelling(PLACEMENT, now)
        nodes = ", ".join(job.seats[position] for position in lacking)
        reason = f"the ranks of {nodes} get a further holder" if nodes else f"snapshots are protected by {job.scheme}"
        self._drains.begin_reconfiguration(reason, now)

    # --- what a person asks for --------------------------------------------------------------------------------------

    @property
    def chooses_scheme(self) -> bool:
        return self._scheme is not None and self._scheme.is_allowed

    def choose_scheme_again(self, now: float) -> None:
        if self._scheme is not None:
            self._scheme.choose_again(now)

    def on_scheme_asked(self, is_placed_anew: bool, now: float) -> None:
        if self._scheme is not None:
            self._scheme.on_overruled(is_placed_anew, now)

    # --- for status --------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        if self.adaptation is None or self._scheme is None:
            return {}
        decided = {
            "guarded": dict(self.adaptation.guarded),
            "held_once_more": sorted(self._job.held_once_more),
            "environment": sorted(self.adaptation.shared),
            "scheme": self._scheme.facts(),
        }
        return {"protection": decided}

    def node_facts(self, member: Member) -> dict[str, object]:
        signs = self.health_of(member).signs
        return {"signs": [{"kind": sign.kind, "grade": sign.grade, "count": sign.count} for sign in signs]}


def _memory_of(node: str, health: Health) -> Memory:
    return Memory(
        node=node,
        total=health.memory_bytes,
        available=health.available_bytes,
        copies=health.copies_bytes,
        own=health.own_bytes,
    )


def _grades(signs: tuple[Sign, ...]) -> list[tuple[str, int]]:
    return [(sign.kind, sign.grade) for sign in signs]
