"""Which coordinator a node follows. Orders of a lower term than the promised one are refused here, before any part of
the agent sees them."""

from __future__ import annotations

from deadpool.protocol.agent.leadership.coordinator_liveness import CoordinatorLiveness
from deadpool.protocol.agent.leadership.takeover_report import TakeoverRecord
from deadpool.protocol.messages import JoinRefused, OrderMessage, Shutdown, Welcome
from deadpool.protocol.quorum import Promise


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
