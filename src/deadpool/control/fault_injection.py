"""Injections that a node was ordered to suffer: who of its trainers waits for which, and what the agent itself does.

Everything here runs on the agent's event loop, except the holding of a stream whose bytes are on the wire.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

from deadpool.events import Event
from deadpool.protocol.agent.trainers import NodeTrainers
from deadpool.protocol.effects import PushCopy
from deadpool.protocol.messages import Injected, Injection
from deadpool.protocol.seal import Seal

_HOLD_S = 5.0


class PendingInjections:
    """An order is kept until it was carried out or missed, for trainers that are seated later too."""

    def __init__(
        self,
        trainers: NodeTrainers,
        *,
        send: Callable[[str, Any], None],
        signal_trainer: Callable[[str, int], None],
        report: Callable[[Event], None],
    ) -> None:
        self._trainers, self._send, self._signal_trainer, self._report = trainers, send, signal_trainer, report
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Injection] = []

    def order(self, injection: Injection) -> None:
        if injection.at is None:
            self._inject(injection)
            return
        self._waiting.append(injection)
        if injection.at == "wire":
            self._tell("injection_set", injection, injection.rank)
        for trainer in self._trainers.seated():
            if trainer.rank is not None:
                self._hand(injection, trainer.name, trainer.rank)

    def seated(self, trainer: str, rank: int) -> None:
        """It has been told its seat and not begun: what waits for it is told right after."""
        for injection in self._waiting:
            self._hand(injection, trainer, rank)

    def injected(self, news: Injected) -> None:
        """A trainer has hit itself; its node follows where it was meant. Or its moment did not come."""
        self._forget(news.injection)
        if news.hit and news.injection.rank is None:
            self._inject(news.injection)

    def midway(self, push: PushCopy) -> Callable[[], None] | None:
        """For a push that an order waits for: what to do, on the push's thread, when its first bytes are out."""
        seal = push.copy.seal
        for injection in [each for each in self._waiting if each.at == "wire" and each.rank in (None, seal.rank)]:
            assert injection.step is not None
            if injection.step == seal.version.number:
                return lambda: self._hold(injection, seal)
            if injection.step < seal.version.number:
                self._forget(injection)
                self._tell("injection_missed", injection, seal.rank)
        return None

    def _hand(self, injection: Injection, trainer: str, rank: int) -> None:
        if injection.at != "wire" and injection.rank in (None, rank):
            self._send(trainer, injection)

    def _hold(self, injection: Injection, seal: Seal) -> None:
        """No further byte leaves before the injection has fallen. A signal that does not kill is waited out."""
        fallen = threading.Event()
        self._loop.call_soon_threadsafe(self._fall, injection, seal, fallen)
        fallen.wait(_HOLD_S)

    def _fall(self, injection: Injection, seal: Seal, fallen: threading.Event) -> None:
        if injection in self._waiting:  # a second rank's push of the same version comes too late
            self._forget(injection)
            self._tell("injected", injection, seal.rank)
            self._inject(injection)
        fallen.set()

    def _inject(self, injection: Injection) -> None:
        """A whole node is this process group: agent and trainers."""
        if injection.rank is None:
            os.killpg(os.getpgid(0), injection.signal)
            return
        trainer = self._trainers.holder_of(injection.rank)
        if trainer is not None:
            self._signal_trainer(trainer.name, injection.signal)

    def _forget(self, injection: Injection) -> None:
        self._waiting = [each for each in self._waiting if each != injection]

    def _tell(self, what: str, injection: Injection, rank: int | None) -> None:
        detail = {"at": injection.at, "signal": injection.signal}
        self._report(Event(what=what, rank=rank, step=injection.step, detail=detail))
