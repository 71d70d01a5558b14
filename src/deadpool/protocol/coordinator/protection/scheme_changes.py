"""How the snapshots of a running job are protected: who may change that, and what follows.

A person may ask for any scheme that the job can have. The job itself changes only between the scheme that the user
asked for when it was started and the coded one that the bounds allow; `scheme_choice.py` decides when. A coordinator
that takes over goes on with the scheme of the newest plan. It does not know who chose it: a scheme that is neither of
the two was asked for by a person, and stays.
"""

from __future__ import annotations

from typing import Any

from deadpool.protocol.coding import Scheme
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.leaving.drain import Drains
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.protection.adaptation import PLACEMENT, Adaptation, Change, Memory, Outlook
from deadpool.protocol.coordinator.protection.scheme_choice import SchemeChoice

LOOKS = 10
"""At the memory of all nodes within a dwell time, where nothing new is told."""


class SchemeChanges:
    def __init__(self, job: JobState, drains: Drains, adaptation: Adaptation | None) -> None:
        self._job, self._drains, self._adaptation = job, drains, adaptation
        self._choice = SchemeChoice(adaptation.bounds, adaptation.pacing) if adaptation is not None else None
        self._tight: set[str] = set()  # nodes on which copies take too much memory
        self._next_look = 0.0  # at the memory of all nodes, unless a tight one tells something new

    # --- the job's own choice ----------------------------------------------------------------------------------------

    def on_health(self, member: Member) -> None:
        if self._choice is None:
            return
        if self._choice.is_tight(memory_of(member)):
            self._tight.add(member.node)
            self._next_look = 0.0
        else:
            self._tight.discard(member.node)

    def adopt(self, outlook: Outlook, now: float) -> None:
        if self._choice is not None:
            self._choice.adopt(outlook, now)

    def may_choose(self, now: float) -> bool:
        """Whether the memory of all nodes has to be looked at, of which there may be thousands."""
        job, choice = self._job, self._choice
        if choice is None or choice.is_overruled or now < self._next_look or self.refusal_to_choose() is not None:
            return False
        if job.scheme != job.asked_scheme:
            return choice.may_return(now)
        tight = [job.members[node] for node in self._tight if node in job.members]
        return any(member.position is not None for member in tight)

    def choose(self, outlook: Outlook, now: float) -> list[Change]:
        if self._choice is None or self._adaptation is None:
            return []
        if outlook.memory and outlook.is_settled:
            self._next_look = now + self._adaptation.bounds.dwell_s / LOOKS
        return self._choice.decide(outlook, now)

    def carry_out(self, change: Change, now: float) -> None:
        self._use(Scheme.parse(change.value), "the job has chosen it", now)

    # --- what a person asks for --------------------------------------------------------------------------------------

    def refusal(self, scheme: Scheme) -> str | None:
        """Why snapshots cannot be protected in this way; None: they can."""
        job, losses = self._job, scheme.losses
        if losses >= job.layout.positions:
            return f"{scheme} needs more than the {job.layout.positions} nodes of this job: give a smaller N or M"
        if not losses and job.layout.positions > 1:
            return f"{scheme} keeps no copy on another node: give copies=1 or more"
        if scheme.is_coded and job.carried:
            return "some ranks are carried by others, which needs whole copies: wait until the job has grown again"
        if job.carried and scheme.copies >= (left := len(set(job.seats))):
            return f"{scheme} needs more nodes than the {left} that are left: wait until the job has grown again"
        return None

    def refusal_to_choose(self) -> str | None:
        """Why the job cannot choose its scheme by itself; None: it can."""
        if self._adaptation is not None and self._adaptation.bounds.coded is not None:
            return None
        why = "it was started without rs(K,M) in --protect-at-most"
        return f"the job may not choose, for {why}: give --scheme copies=N or rs(K,M)"

    def on_asked(self, scheme: Scheme | None, now: float) -> None:
        """A person overrules the job's own choice or, with None, lets it choose again."""
        if scheme is None and self.refusal_to_choose() is None:
            self._choose_again(now)
        elif scheme is not None and self.refusal(scheme) is None:
            if self._choice is not None:
                self._choice.is_overruled = True
            self._use(scheme, "asked to", now)

    def _choose_again(self, now: float) -> None:
        """A scheme that the job could not have chosen ends."""
        assert self._choice is not None and self._adaptation is not None
        self._choice.is_overruled = False
        if self._job.scheme != self._adaptation.bounds.coded:
            self._use(self._job.asked_scheme, "the job is to choose again", now)

    # --- what follows ------------------------------------------------------------------------------------------------

    def _use(self, scheme: Scheme, why: str, now: float) -> None:
        """Uses a scheme from the next plan on. If nothing else is under way, all ranks stop at one version for it at
        once; otherwise the next recovery or drain is that plan. Groups have no holders of one rank: where copies
        return, a node is held once more only if it is guarded anew."""
        job = self._job
        if scheme == job.scheme:
            return
        reason = f"snapshots are protected by {scheme} instead of {job.scheme}"
        job.scheme = scheme
        if scheme.is_coded:
            job.held_once_more.clear()
        job.out.emit("scheme", scheme=str(scheme), reason=why)
        if job.can_drain and self._drains.current is None and job.commits.protected:
            self._drains.begin_reconfiguration(reason, now)
            if self._adaptation is not None:
                self._adaptation.pacing.start_dwelling(PLACEMENT, now)

    @property
    def is_outstanding(self) -> bool:
        """Snapshots are not protected as they are to be: a reconfiguration has failed, or could not begin."""
        return self._job.commits.placement.scheme != self._job.scheme

    def facts(self) -> dict[str, Any]:
        assert self._choice is not None
        reason = "a person has asked for it" if self._choice.is_overruled else self._choice.reason
        return {"scheme": str(self._job.scheme), "reason": reason}


def memory_of(member: Member) -> Memory:
    health = member.health
    return Memory(
        node=member.node,
        total=health.memory_bytes,
        available=health.available_bytes,
        copies=health.copies_bytes,
        own=health.own_bytes,
    )
