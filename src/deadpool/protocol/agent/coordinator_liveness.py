"""Whether a node can reach a coordinator, and for how long not.

Rule 20, timeouts: agents time out the coordinator only to find another one. Its loss is no fault: training goes on, and
only the permit does not move.
"""

from __future__ import annotations

from enum import Enum, auto

from deadpool.protocol.messages import Settings
from deadpool.protocol.times import earliest

UNKNOWN_SILENCE_S = 30.0
"""For somebody to answer a Join, before we were told what is usual in this job: at its start thousands may call."""


class Verdict(Enum):
    SILENT = auto()  # this one says nothing: try the next
    ISOLATED = auto()  # nobody was there for so long that the others will have gone on without us
    FORSAKEN = auto()  # and nobody came back after that either


class Reach:
    def __init__(self) -> None:
        self._heard: float | None = None  # when it last said something; None: there is no link
        self._without: float | None = None  # since when there has been no coordinator; None: there is one
        self.isolated = False
        self._patience = 1.0
        self._settings: Settings | None = None

    def found(self, now: float, patience: float) -> None:
        """Somebody who may be the coordinator, or may become it."""
        self._heard, self._patience = now, patience

    def heard(self, now: float) -> None:
        self._heard = now

    def welcomed(self, settings: Settings) -> None:
        self._settings, self._without, self.isolated, self._patience = settings, None, False, 1.0

    @property
    def is_welcome(self) -> bool:
        """There is a coordinator, as far as is known."""
        return self._settings is not None and self._without is None

    def lost(self, now: float) -> None:
        self._heard = None
        if self._without is None:
            self._without = now

    def excuse(self, seconds: float) -> None:
        """We did not listen for so long."""
        self._heard = self._heard + seconds if self._heard is not None else None
        self._without = self._without + seconds if self._without is not None else None

    def deadline(self) -> float | None:
        return earliest(self._silent_at(), self._isolated_at())

    def look(self, now: float) -> Verdict | None:
        silent, isolated = self._silent_at(), self._isolated_at()
        if isolated is not None and now >= isolated:
            verdict = Verdict.FORSAKEN if self.isolated else Verdict.ISOLATED
            self.isolated = True
            return verdict
        if silent is not None and now >= silent:
            self.lost(now)
            return Verdict.SILENT
        return None

    def _silent_at(self) -> float | None:
        silence_s = self._settings.silence_s if self._settings else UNKNOWN_SILENCE_S
        return self._heard + self._patience * silence_s if self._heard is not None else None

    def _isolated_at(self) -> float | None:
        """Who was never welcomed has nothing to end."""
        if self._settings is None or self._without is None:
            return None
        return self._without + self._settings.isolation_s * (2 if self.isolated else 1)
