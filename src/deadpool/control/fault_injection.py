"""Strikes that a node was ordered to suffer: who of its trainers waits for which, and what the agent itself does.

Everything here runs on the agent's event loop, except the holding of a stream whose bytes are on the wire.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

from deadpool.events import Event
from deadpool.protocol.agent.trainers import Crew
from deadpool.protocol.effects import PushCopy
from deadpool.protocol.messages import Sprung, Strike
from deadpool.protocol.seal import Seal

_HOLD_S = 5.0


class Ambushes:
    """An order is kept until it was carried out or missed, for trainers that are seated later too."""

    def __init__(
        self,
        crew: Crew,
        *,
        send: Callable[[str, Any], None],
        signal_trainer: Callable[[str, int], None],
        report: Callable[[Event], None],
    ) -> None:
        self._crew, self._send, self._signal_trainer, self._report = crew, send, signal_trainer, report
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Strike] = []

    def order(self, strike: Strike) -> None:
        if strike.at is None:
            self._strike(strike)
            return
        self._waiting.append(strike)
        if strike.at == "wire":
            self._tell("ambush_set", strike, strike.rank)
        for trainer in self._crew.seated():
            if trainer.rank is not None:
                self._hand(strike, trainer.name, trainer.rank)

    def seated(self, trainer: str, rank: int) -> None:
        """It has been told its seat and not begun: what waits for it is told right after."""
        for strike in self._waiting:
            self._hand(strike, trainer, rank)

    def sprung(self, news: Sprung) -> None:
        """A trainer has struck itself; its node follows where it was meant. Or its moment did not come."""
        self._forget(news.strike)
        if news.hit and news.strike.rank is None:
            self._strike(news.strike)

    def midway(self, push: PushCopy) -> Callable[[], None] | None:
        """For a push that an order waits for: what to do, on the push's thread, when its first bytes are out."""
        seal = push.copy.seal
        for strike in [each for each in self._waiting if each.at == "wire" and each.rank in (None, seal.rank)]:
            assert strike.step is not None
            if strike.step == seal.version.number:
                return lambda: self._hold(strike, seal)
            if strike.step < seal.version.number:
                self._forget(strike)
                self._tell("ambush_missed", strike, seal.rank)
        return None

    def _hand(self, strike: Strike, trainer: str, rank: int) -> None:
        if strike.at != "wire" and strike.rank in (None, rank):
            self._send(trainer, strike)

    def _hold(self, strike: Strike, seal: Seal) -> None:
        """No further byte leaves before the strike has fallen. A signal that does not kill is waited out."""
        fallen = threading.Event()
        self._loop.call_soon_threadsafe(self._fall, strike, seal, fallen)
        fallen.wait(_HOLD_S)

    def _fall(self, strike: Strike, seal: Seal, fallen: threading.Event) -> None:
        if strike in self._waiting:  # a second rank's push of the same version comes too late
            self._forget(strike)
            self._tell("ambush", strike, seal.rank)
            self._strike(strike)
        fallen.set()

    def _strike(self, strike: Strike) -> None:
        """A whole node is this process group: agent and trainers."""
        if strike.rank is None:
            os.killpg(os.getpgid(0), strike.signal)
            return
        trainer = self._crew.holder_of(strike.rank)
        if trainer is not None:
            self._signal_trainer(trainer.name, strike.signal)

    def _forget(self, strike: Strike) -> None:
        self._waiting = [each for each in self._waiting if each != strike]

    def _tell(self, what: str, strike: Strike, rank: int | None) -> None:
        detail = {"at": strike.at, "signal": strike.signal}
        self._report(Event(what=what, rank=rank, step=strike.step, detail=detail))
