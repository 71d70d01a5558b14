"""How the job itself changes between the scheme that the user asked for and the coded one that the bounds allow.

`scheme_choice.py` decides when. A coordinator that takes over does not know who chose the scheme that it finds: one
that is neither of the two was asked for by a person, and stays.
"""

from __future__ import annotations

from typing import Any

from deadpool.protocol.coding import Scheme
from deadpool.protocol.coordinator.protection.scheme_changes import SchemeChanges
from deadpool.protocol.coordinator.seams import CoordinatorCore
from deadpool.protocol.features.adaptation.coordinator.adaptation import PLACEMENT, Adaptation, Change, Memory, Outlook
from deadpool.protocol.features.adaptation.coordinator.scheme_choice import SchemeChoice

LOOKS = 10
"""At the memory of all nodes within a dwell time, where nothing new is told."""


class ChosenScheme:
    def __init__(self, core: CoordinatorCore, adaptation: Adaptation) -> None:
        self._job, self._adaptation = core.job, adaptation
        self._changes: SchemeChanges = core.schemes
        self._choice = SchemeChoice(adaptation.bounds, adaptation.pacing)
        self._tight: set[str] = set()  # nodes on which copies take too much memory
        self._next_look = 0.0  # at the memory of all nodes, unless a tight one tells something new

    # --- the job's own choice ----------------------------------------------------------------------------------------

    def on_memory(self, memory: Memory) -> None:
        if self._choice.is_tight(memory):
            self._tight.add(memory.node)
            self._next_look = 0.0
        else:
            self._tight.discard(memory.node)

    def adopt(self, outlook: Outlook, now: float) -> None:
        self._choice.adopt(outlook, now)

    @property
    def is_allowed(self) -> bool:
        return self._adaptation.bounds.coded is not None

    def may_choose(self, now: float) -> bool:
        """Whether the memory of all nodes has to be looked at, of which there may be thousands."""
        job, choice = self._job, self._choice
        if choice.is_overruled or now < self._next_look or not self.is_allowed:
            return False
        if job.scheme != job.asked_scheme:
            return choice.may_return(now)
        tight = [job.members[node] for node in self._tight if node in job.members]
        return any(member.position is not None for member in tight)

    def choose(self, outlook: Outlook, now: float) -> list[Change]:
        if outlook.memory and outlook.is_settled:
            self._next_look = now + self._adaptation.bounds.dwell_s / LOOKS
        return self._choice.decide(outlook, now)

    def carry_out(self, change: Change, now: float) -> None:
        self._use(Scheme.parse(change.value), "the job has chosen it", now)

    def _use(self, scheme: Scheme, why: str, now: float) -> None:
        if self._changes.use(scheme, why, now):
            self._adaptation.pacing.start_dwelling(PLACEMENT, now)

    # --- what a person asks for --------------------------------------------------------------------------------------

    def on_overruled(self, is_placed_anew: bool, now: float) -> None:
        self._choice.is_overruled = True
        if is_placed_anew:
            self._adaptation.pacing.start_dwelling(PLACEMENT, now)

    def choose_again(self, now: float) -> None:
        """A scheme that the job could not have chosen ends."""
        self._choice.is_overruled = False
        if self._job.scheme != self._adaptation.bounds.coded:
            self._use(self._job.asked_scheme, "the job is to choose again", now)

    def facts(self) -> dict[str, Any]:
        reason = "a person has asked for it" if self._choice.is_overruled else self._choice.reason
        return {"scheme": str(self._job.scheme), "reason": reason}
