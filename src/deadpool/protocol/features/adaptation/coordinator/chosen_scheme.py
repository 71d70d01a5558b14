"""Whole copies or parity, where the job may choose.

`SchemeChoice`: whether snapshots are kept as whole copies or as parity: a pure decision, from the memory of nodes.

The user asks for whole copies, and may allow a coded scheme that survives as many losses. It is chosen where copies
take more of some node's memory than is allowed, or where a node's memory runs out. What keeps this from going back
and forth, beside dwell time and budget (`adaptation.py`; rule 28, protection changes slowly and within bounds):

    two limits   copies are given up above the user's share, and return where they would take FITS of it at most
    back-off     each time that copies have to be given up again, it takes twice as long until they are tried again
    unknown      where the memory of any node is not known, copies do not return

A person overrules: what `deadpool job protect` has asked for stays until `deadpool job protect --scheme auto`.

`ChosenScheme`: how the job itself changes between the scheme that the user asked for and the coded one that the
bounds allow.

`chosen_scheme.py` decides when. A coordinator that takes over does not know who chose the scheme that it finds: one
that is neither of the two was asked for by a person, and stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from deadpool.protocol.causes import AdaptiveBounds
from deadpool.protocol.coordinator.protection.scheme_changes import SchemeChanges
from deadpool.protocol.coordinator.seams import CoordinatorCore
from deadpool.protocol.features.adaptation.coordinator.adaptation import (
    PLACEMENT,
    Adaptation,
    Change,
    Memory,
    Outlook,
    Pacing,
)
from deadpool.protocol.schemes import Scheme

SCHEME = "the scheme"
RUNS_OUT = 0.1
"""The share of a node's memory below which it runs out. Parity needs room of its own before copies are freed, so it is
not waited for until nothing is left."""
FITS = 0.75
"""The part of the share that the user allows. Agents tell figures again when they have changed by a fifth: so much is
doubt.
"""
LEFT_AFTER = 2 * RUNS_OUT
"""The share of memory that has to be left on every node after copies have returned."""
WORTH_IT = 0.1
"""The share of a node's copies that coding has to free: where a node's own snapshots fill it, coding is no help."""
LONGEST_WAIT = 64
"""Dwell times after which copies are tried again at the latest."""


class SchemeChoice:
    def __init__(self, bounds: AdaptiveBounds, pacing: Pacing) -> None:
        self._bounds, self._pacing = bounds, pacing
        self.is_overruled = False  # a person has chosen
        self.reason = ""  # why snapshots are coded, or why they are not although copies take too much
        self._wait = 1  # dwell times that snapshots stay coded at least
        self._has_returned = False  # to whole copies, at least once

    def adopt(self, outlook: Outlook, now: float) -> None:
        """What a successor finds: the coordinator before it may have chosen this, it is not known since when."""
        if outlook.scheme == self.coded_for(outlook):
            self.reason = "the job had chosen it, or a person had asked for it, before this coordinator took over"
            self._pacing.start_dwelling(SCHEME, now)

    def coded_for(self, outlook: Outlook) -> Scheme | None:
        """The coded scheme that may be used; None: the user allows none that survives as many losses and takes less
        memory."""
        asked, coded = _asked(outlook), self._bounds.in_groups
        if coded is None or asked.in_groups or coded.losses < asked.losses:
            return None
        return coded if coded.held_share(outlook.positions) < asked.held_share(outlook.positions) else None

    def is_tight(self, memory: Memory) -> bool:
        """Copies of others lie on this node, and they take too much."""
        return memory.copies > memory.own and (self._is_over(memory) or _runs_out(memory))

    def may_return(self, now: float) -> bool:
        """Snapshots have been coded for long enough."""
        return self._pacing.stayed_s(SCHEME, now) >= self._wait * self._bounds.dwell_s

    def decide(self, outlook: Outlook, now: float) -> list[Change]:
        coded, asked = self.coded_for(outlook), _asked(outlook)
        if coded is None or self.is_overruled or not outlook.is_settled:
            return []
        if outlook.scheme == asked:
            return self._code(coded, outlook, now)
        if outlook.scheme == coded:
            return self._return(outlook, now)
        return []  # a person has asked for it, of a coordinator before this one

    # --- to parity ---------------------------------------------------------------------------------------------------

    def _code(self, coded: Scheme, outlook: Outlook, now: float) -> list[Change]:
        share = coded.held_share(outlook.positions) / _asked(outlook).copies
        helped = [each for each in outlook.memory if self.is_tight(each) and _freed(each, share) >= WORTH_IT]
        if not helped:
            self.reason = ""
            return []
        worst = max(helped, key=lambda each: (self._is_over(each), each.copies / each.total))
        why = self._why(worst)
        if (lacking := _without_room(outlook.memory, share)) is not None:
            self.reason = f"{why}, but {lacking.node} has no room for parity beside its copies"
            return []
        if not outlook.is_full or not self._pacing.allows(SCHEME, now, raises=True):
            return []
        self._wait = min(2 * self._wait, LONGEST_WAIT) if self._has_returned else 1
        self.reason = f"the job has chosen it: {why}"
        told = f"{why}: snapshots are coded as {coded}, for which a node keeps {share:.0%} as much for others"
        return self._change(coded, told, now)

    def _is_over(self, memory: Memory) -> bool:
        return bool(memory.total) and memory.copies > self._bounds.memory_share * memory.total

    def _why(self, memory: Memory) -> str:
        if self._is_over(memory):
            taken, allowed = memory.copies / memory.total, self._bounds.memory_share
            return f"copies take {taken:.0%} of the memory of {memory.node}, more than the {allowed:.0%} allowed"
        return f"{memory.node} has only {memory.available / memory.total:.0%} of its memory left"

    # --- back to whole copies ----------------------------------------------------------------------------------------

    def _return(self, outlook: Outlook, now: float) -> list[Change]:
        are_known = bool(outlook.memory) and all(each.total and each.own for each in outlook.memory)
        if not are_known or not self.may_return(now):
            return []
        asked, held, allowed = _asked(outlook), _held_whole(outlook), self._bounds.memory_share
        most = max((each.own + held) / each.total for each in outlook.memory)
        # Parity is freed only after copies have come.
        left = min((each.available - held) / each.total for each in outlook.memory)
        if most > FITS * allowed or left < LEFT_AFTER or not self._pacing.allows(SCHEME, now, raises=False):
            return []
        self.reason, self._has_returned = "", True
        told = f"whole copies would take {most:.0%} of a node's memory at most, and {allowed:.0%} are allowed"
        return self._change(asked, f"{told}: snapshots are protected by {asked} again", now)

    def _change(self, scheme: Scheme, reason: str, now: float) -> list[Change]:
        self._pacing.spend(SCHEME, now)
        return [Change(subject=SCHEME, value=str(scheme), reason=reason, raises=False)]


def _asked(outlook: Outlook) -> Scheme:
    return outlook.asked or outlook.scheme


def _runs_out(memory: Memory) -> bool:
    return bool(memory.total) and memory.available < RUNS_OUT * memory.total


def _freed(memory: Memory, share: float) -> float:
    """The share of a node's copies that coding would free."""
    return (memory.copies - memory.own) * (1 - share) / memory.copies


def _without_room(memory: Sequence[Memory], share: float) -> Memory | None:
    """A node that cannot take the parity while it still keeps copies. Parity is as large as the largest snapshot asks
    for."""
    largest = max((each.copies - each.own for each in memory), default=0)
    return next((each for each in memory if each.total and each.available < share * largest), None)


def _held_whole(outlook: Outlook) -> int:
    """Bytes of the whole copies that a node would hold: as many as its largest neighbour's own ones, at most. Where
    peers hold part of a state anyway it is less, and with racks of different sizes it may be more."""
    return _asked(outlook).copies * max(each.own for each in outlook.memory)


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
        return self._adaptation.bounds.in_groups is not None

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
        if self._job.scheme != self._adaptation.bounds.in_groups:
            self._use(self._job.asked_scheme, "the job is to choose again", now)

    def facts(self) -> dict[str, object]:
        reason = "a person has asked for it" if self._choice.is_overruled else self._choice.reason
        return {"scheme": str(self._job.scheme), "reason": reason}
