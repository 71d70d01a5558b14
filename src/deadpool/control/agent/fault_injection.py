"""Faults that are to be injected on this node: which trainer each one waits in, and those that the agent injects
itself.

All of it runs on the agent's event loop, except holding back a transfer whose first bytes are on the wire.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

from deadpool.events.event import Event
from deadpool.protocol.agent.trainers.trainers import NodeTrainers
from deadpool.protocol.effects import Push
from deadpool.protocol.messages import Injected, Injection
from deadpool.protocol.seal import Seal

_HOLD_S = 5.0


class NodeInjections:
    """An order is kept until it is carried out or missed: a trainer that is seated later gets it too."""

    def __init__(
        self,
        trainers: NodeTrainers,
        *,
        send: Callable[[str, Injection], None],
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
            self._report_injection("injection_set", injection, injection.rank)
        for trainer in self._trainers.seated():
            if trainer.rank is not None:
                self._send_to(injection, trainer.name, trainer.rank)

    def seated(self, trainer: str, rank: int) -> None:
        """Called when a trainer was sent its seat and has not begun: it gets its orders right after that."""
        for injection in self._waiting:
            self._send_to(injection, trainer, rank)

    def on_injected(self, news: Injected) -> None:
        """A trainer has sent the signal to itself, and the node follows where the node was meant; or the moment did not
        come."""
        self._forget(news.injection)
        if news.hit and news.injection.rank is None:
            self._inject(news.injection)

    def midway(self, push: Push) -> Callable[[], None] | None:
        """What to do when the first bytes of this push are on the wire, if an order waits for it. It runs on the push's
        thread."""
        seal = push.copy.seal
        for injection in [each for each in self._waiting if each.at == "wire" and each.rank in (None, seal.rank)]:
            assert injection.step is not None
            if injection.step == seal.version.number:
                return lambda: self._hold(injection, seal)
            if injection.step < seal.version.number:
                self._forget(injection)
                self._report_injection("injection_missed", injection, seal.rank)
        return None

    def _send_to(self, injection: Injection, trainer: str, rank: int) -> None:
        if injection.at != "wire" and injection.hits(rank):
            self._send(trainer, injection)

    def _hold(self, injection: Injection, seal: Seal) -> None:
        """No further byte is sent before the signal is sent. A signal that does not kill only delays the push."""
        sent = threading.Event()
        self._loop.call_soon_threadsafe(self._inject_on_wire, injection, seal, sent)
        sent.wait(_HOLD_S)

    def _inject_on_wire(self, injection: Injection, seal: Seal, sent: threading.Event) -> None:
        if injection in self._waiting:  # else another rank's push of the same version was first
            self._forget(injection)
            self._report_injection("injected", injection, seal.rank)
            self._inject(injection)
        sent.set()

    def _inject(self, injection: Injection) -> None:
        """A whole node is this process group: the agent and its trainers."""
        if injection.rank is None:
            os.killpg(os.getpgid(0), injection.signal)
            return
        trainer = self._trainers.trainer_of(injection.rank)
        if trainer is not None:
            self._signal_trainer(trainer.name, injection.signal)

    def _forget(self, injection: Injection) -> None:
        self._waiting = [each for each in self._waiting if each != injection]

    def _report_injection(self, what: str, injection: Injection, rank: int | None) -> None:
        detail = {"at": injection.at, "signal": injection.signal}
        self._report(Event(what=what, rank=rank, step=injection.step, detail=detail))
