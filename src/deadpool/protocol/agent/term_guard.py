"""Whom a node follows: what it has promised, whom it can reach, and what the next one would have to be told. The
promise is kept here, at the door: whatever is said in a lower term is refused."""

from __future__ import annotations

from typing import Any

from deadpool.protocol.agent.coordinator_liveness import Reach
from deadpool.protocol.agent.takeover_report import Witness
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Refused, Shutdown, Welcome
from deadpool.protocol.quorum import Footing, Promise


class Allegiance:
    def __init__(self) -> None:
        self.reach = Reach()
        self.witness = Witness()

    def footing(self, generation: Generation) -> Footing:
        return self.witness.footing(generation)

    def admits(self, term: int, message: Any) -> bool:
        """Rule 18, one coordinator per term: a lower term than the one promised is refused, whatever it says; a higher
        one has to ask first."""
        promise = self.witness.promise
        match message:
            case Welcome(term=asked, by=by):
                return promise.allows(asked, by)
            case Refused() | Shutdown():
                return term >= promise.term
            case _:
                return term == promise.term

    def pledge(self, welcome: Welcome) -> None:
        """Before anything is reported: that must not be overtaken by an order of somebody else."""
        self.witness.promise = Promise(term=welcome.term, to=welcome.by)
        self.reach.welcomed(welcome.settings)
