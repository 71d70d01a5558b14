"""Whom a node reaches and whom it follows.

`CoordinatorTimeout` and `CoordinatorLiveness`: whether a node can reach a coordinator, and since when not.

Rule 20 (timeouts): agents time out the coordinator only to find another one. Training goes on meanwhile, and only
the permit does not move.

`ReachedNodes`: which other nodes this one reaches, when the coordinator asks.

`TermGuard`: which coordinator a node follows. Orders of a lower term than the promised one are refused here, before
any part of the agent sees them.
"""

from __future__ import annotations

from enum import Enum, auto

from deadpool.protocol.agent.leadership.takeover_report import TakeoverRecord
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.effects import ProbePeers, earliest
from deadpool.protocol.identity import Address
from deadpool.protocol.inputs import PeersProbed
from deadpool.protocol.messages import JoinRefused, OrderMessage, Probe, Probed, Settings, Shutdown, Welcome
from deadpool.protocol.quorum import Promise

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


class ReachedNodes:
    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._asked: Probe | None = None
        self._reached: set[Address] = set()  # at least once

    def probe(self, order: Probe) -> None:
        self._asked = order
        self._state.effects.append(ProbePeers(number=order.number, peers=order.peers))

    def on_probed(self, result: PeersProbed) -> None:
        """A node that was never reached is not reported: there may be no way to it, and no need for one."""
        asked = self._asked
        if asked is None or asked.number != result.number:
            return
        self._reached.update(peer.address for peer in asked.peers if peer.node not in result.unreachable)
        lost = [peer.node for peer in asked.peers if peer.node in result.unreachable and peer.address in self._reached]
        self._state.tell_coordinator(Probed(generation=asked.generation, number=asked.number, unreachable=tuple(lost)))


class TermGuard:
    def __init__(self) -> None:
        self.liveness = CoordinatorLiveness()
        self.record = TakeoverRecord()

    def admits(self, term: int, message: OrderMessage) -> bool:
        """Rule 18 (one coordinator per term): a lower term than the promised one is refused, whatever it says; a
        higher one has to ask first."""
        promise = self.record.promise
        match message:
            case Welcome(term=asked, by=by):
                return promise.allows(asked, by)
            case JoinRefused() | Shutdown():
                return term >= promise.term
            case _:
                return term == promise.term

    def promise(self, welcome: Welcome) -> None:
        """Promises a term before anything is reported to its coordinator: from then on no order of an older term may
        change what is reported.
        """
        self.record.promise = Promise(term=welcome.term, to=welcome.by)
        self.liveness.on_welcome(welcome.settings)
