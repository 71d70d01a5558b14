"""Whether a node can reach a coordinator, and since when not.

Rule 20 (timeouts): agents time out the coordinator only to find another one. Training goes on
meanwhile, and only the permit does not move.
"""

from __future__ import annotations

from enum import Enum, auto

from deadpool.protocol.effects import earliest
from deadpool.protocol.messages import Settings

UNKNOWN_SILENCE_S = 30.0
"""How long a Join may go unanswered before the node knows the job's settings: at the start thousands may connect."""


class CoordinatorTimeout(Enum):
    SILENT = auto()  # this one says nothing: try the next
    ISOLATED = auto()  # there was none for so long that the other nodes will have gone on without this one
    ABANDONED = auto()  # and none came back after that either


class CoordinatorLiveness:
    def __init__(self) -> None:
        self._last_message: float | None = None  # when; None: there is no link
        self._without_since: float | None = None  # None: there is a coordinator
        self._last_sign: float | None = None  # of the one that was lost; None: there is a coordinator
        self.isolated = False
        self._silence_factor = 1.0
        self._settings: Settings | None = None

    def on_connected(self, now: float, patience: float) -> None:
        """A link to a process that may be the coordinator, or may become it."""
        self._last_message, self._silence_factor = now, patience

    def on_message(self, now: float) -> None:
        self._last_message = now

    def on_welcome(self, settings: Settings) -> None:
        self._settings, self._without_since, self.isolated, self._silence_factor = settings, None, False, 1.0
        self._last_sign = None

    @property
    def has_coordinator(self) -> bool:
        return self._settings is not None and self._without_since is None

    def on_lost(self, now: float, last_sign: float | None = None) -> None:
        """The end of a link is a sign too, and often the last."""
        self._last_message = None
        if self._without_since is None:
            self._without_since = now
            self._last_sign = last_sign if last_sign is not None else now

    def alone_s(self, now: float) -> float:
        """How long ago the coordinator was lost that this node followed; 0: it was not."""
        return now - self._last_sign if self._last_sign is not None and self._settings is not None else 0.0

    def extend(self, seconds: float) -> None:
        """This process itself did not run for so long, and could not have heard anything."""
        self._last_message = self._last_message + seconds if self._last_message is not None else None
        self._without_since = self._without_since + seconds if self._without_since is not None else None

    def deadline(self) -> float | None:
        return earliest(self._silent_at(), self._isolated_at())

    def check_timeouts(self, now: float) -> CoordinatorTimeout | None:
        silent, isolated = self._silent_at(), self._isolated_at()
        if isolated is not None and now >= isolated:
            timeout = CoordinatorTimeout.ABANDONED if self.isolated else CoordinatorTimeout.ISOLATED
            self.isolated = True
            return timeout
        if silent is not None and now >= silent:
            self.on_lost(now, self._last_message)
            return CoordinatorTimeout.SILENT
        return None

    def _silent_at(self) -> float | None:
        silence_s = self._settings.silence_s if self._settings else UNKNOWN_SILENCE_S
        return self._last_message + self._silence_factor * silence_s if self._last_message is not None else None

    def _isolated_at(self) -> float | None:
        """A node that was never welcomed has no trainers to end."""
        if self._settings is None or self._without_since is None:
            return None
        return self._without_since + self._settings.isolation_s * (2 if self.isolated else 1)
