"""Faults that are to be injected on this node: which trainer each one waits in, and those that the agent injects
itself.

All of it runs on the agent's event loop, except what happens to a transfer whose first bytes are on the wire.

A bit that flips in a snapshot of this node, or on its way, is flipped by the agent: no trainer has a part in it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable

from msgspec.structs import replace

from deadpool.config.orders import ARENA, IN_COPIES, WIRE
from deadpool.events.event import Event
from deadpool.protocol.agent.trainers.trainers import NodeTrainers
from deadpool.protocol.effects import Push
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Injected, Injection
from deadpool.protocol.seal import Seal, extent_of, regions_sent
from deadpool.snapshot.arena.slot import region
from deadpool.snapshot.transfer import Midway

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
        self._flipped: set[tuple[int, Version]] = set()  # snapshots in whose slot a bit has flipped

    def order(self, injection: Injection) -> None:
        if injection.at is None:
            self._inject(injection)
            return
        self._waiting.append(injection)
        if injection.at == "wire" or injection.flips in IN_COPIES:
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

    def disturb(self, push: Push, slot: memoryview) -> Midway | None:
        """Flips a bit of the slot of a push that is about to be read, if an order says so. Returns what is to happen,
        on the push's thread, when its first bytes are on the wire."""
        seal = push.copy.seal
        for injection in self._flips_of(seal, ARENA):
            if (seal.rank, seal.version) not in self._flipped:
                self._flip_in(slot, push)
                self._use_up(injection)
                self._report_flip(injection, seal)
        for injection in self._flips_of(seal, WIRE):
            self._use_up(injection)
            return Midway(functools.partial(self._report_later, injection, seal), flips=True)
        held = self._held(push)
        return Midway(held) if held is not None else None

    def _flips_of(self, seal: Seal, what: str) -> list[Injection]:
        """The orders that this snapshot is to be hit by: it is newer than their step."""
        of_kind = [each for each in self._waiting if each.flips == what and each.hits(seal.rank)]
        return [each for each in of_kind if each.step is not None and each.step < seal.version.number]

    def _flip_in(self, slot: memoryview, push: Push) -> None:
        """Flips it in a region that is sent. Its seal says what it was before."""
        seal = push.copy.seal
        sent = regions_sent(replace(seal, full=push.full))
        data = region(slot, push.copy.geometry, seal.extent, max(sent, key=lambda name: extent_of(seal.extent, name)))
        data[seal.version.number % len(data)] ^= 1
        self._flipped.add((seal.rank, seal.version))

    def _use_up(self, injection: Injection) -> None:
        if not injection.lasts:
            self._forget(injection)

    def _report_later(self, injection: Injection, seal: Seal) -> None:
        self._loop.call_soon_threadsafe(self._report_flip, injection, seal)

    def _report_flip(self, injection: Injection, seal: Seal) -> None:
        """The step is the one that the snapshot was taken after, as for a bit of a parameter."""
        detail = {"at": injection.at, "flips": injection.flips, "lasts": injection.lasts or None}
        self._report(Event(what="injected", rank=seal.rank, step=seal.version.number - 1, detail=detail))

    def _held(self, push: Push) -> Callable[[], None] | None:
        """What holds a push until the fault is injected that waits for it."""
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
        is_mine = injection.at == "wire" or injection.flips in IN_COPIES
        if not is_mine and injection.hits(rank):
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
        detail = {"at": injection.at, "signal": injection.signal or None, "flips": injection.flips or None}
        self._report(Event(what=what, rank=rank, step=injection.step, detail=detail))
