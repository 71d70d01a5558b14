"""Whether snapshots are kept as whole copies or as parity: a pure decision, from the memory of nodes.

The user asks for whole copies, and may allow a coded scheme that survives as many losses. It is chosen where copies
take more of some node's memory than is allowed, or where a node's memory runs out. What keeps this from going back and
forth, beside dwell time and budget (`adaptation.py`; rule 28, protection changes slowly and within bounds):

    two limits   copies are given up above the user's share, and return where they would take FITS of it at most
    back-off     each time that copies have to be given up again, it takes twice as long until they are tried again
    unknown      where the memory of any node is not known, copies do not return

A person overrules: what `deadpool job protect` has asked for stays until `deadpool job protect --scheme auto`.
"""

from __future__ import annotations

from collections.abc import Sequence

from deadpool.protocol.adaptive_bounds import AdaptiveBounds
from deadpool.protocol.coding import Scheme
from deadpool.protocol.features.adaptation.coordinator.adaptation import Change, Memory, Outlook, Pacing

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
        asked, coded = _asked(outlook), self._bounds.coded
        if coded is None or asked.is_coded or coded.losses < asked.losses:
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
