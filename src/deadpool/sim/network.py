"""Who can reach whom, and connections as TCP gives them: in order, or late, or not at all, never with a gap.

A direction between two places can be cut. What is sent meanwhile waits at the sender and comes late when the cut has
healed in time; or the connection has broken by then, and the other end does not hear of it. Two connections between the
same places overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deadpool.sim.world import World

Ends = tuple[str, str]
"""From whom to whom."""
SLOW_SHARE, SLOW_FACTOR = 0.02, 10
RETRANSMIT_S = 3.0
"""After a cut has healed, until the sender tries again."""
BREAKS = 0.3
"""Share of connections that do not outlive a cut."""


class Network:
    def __init__(self, world: World) -> None:
        self._world, self.clock = world, world.clock
        self.cuts: set[Ends] = set()
        self._waiting: dict[Ends, list[Link]] = {}

    def is_severed(self, one: str, other: str) -> bool:
        """Nothing that needs answers gets through."""
        return bool(self.cuts) and ((one, other) in self.cuts or (other, one) in self.cuts)

    def cut(self, ends: Iterable[Ends], *, for_s: float | None) -> list[Ends]:
        """Those of `ends` that were not cut already, which are healed after a while, and at peace at the latest. None:
        for ever."""
        fresh = [each for each in dict.fromkeys(ends) if each not in self.cuts]
        self.cuts.update(fresh)
        self._world.tell("world", "cut", {"links": " ".join(f"{a}>{b}" for a, b in fresh), "for_s": for_s})
        if for_s is not None:
            self._world.clock.after(for_s, partial(self.heal, fresh))
            self._world.heal_at_peace(partial(self.heal, fresh))
        return fresh

    def heal(self, ends: Iterable[Ends]) -> None:
        healed = [each for each in ends if each in self.cuts]
        self.cuts.difference_update(healed)
        for each in healed:
            for link in self._waiting.pop(each, []):
                self._world.after(RETRANSMIT_S, link.go_on)

    def hold(self, link: Link, ends: Ends) -> None:
        self._waiting.setdefault(ends, []).append(link)


class Link:
    """One direction of one connection: first in, first out, each message late by its own chance.

    Without `ends` it does not leave a machine. What was cut off is swallowed.
    """

    __slots__ = ("_at", "_deliver", "_ends", "_held", "_last", "_latency_s", "_network", "_random", "cut")

    def __init__(self, world: World, deliver: Callable[[Any], None], ends: Ends | None = None) -> None:
        self._at, self._random, self._latency_s = world.clock.at, world.rng.random, world.latency_s
        self._network, self._deliver, self._ends = world.network, deliver, ends
        self._last = 0.0
        self._held: list[Any] = []
        self.cut = False

    def send(self, message: Any) -> None:
        chance = self._random()
        delay = self._latency_s() * chance
        if chance < SLOW_SHARE:
            delay = SLOW_FACTOR * self._latency_s() * self._random()
        self._last = max(self._last, self._network.clock.now + delay)
        self._at(self._last, partial(self._arrive, message))

    def _arrive(self, message: Any) -> None:
        if self.cut:
            return
        if self._held or (self._network.cuts and self._ends in self._network.cuts):
            self._hold(message)
        else:
            self._deliver(message)

    def _hold(self, message: Any) -> None:
        if not self._held:
            assert self._ends is not None
            self._network.hold(self, self._ends)
        self._held.append(message)

    def go_on(self) -> None:
        """The sender tries again: everything comes at once, in order; or the connection was given up."""
        if self._ends in self._network.cuts:
            assert self._ends is not None
            self._network.hold(self, self._ends)
            return
        held, self._held = self._held, []
        self.cut |= self._random() < BREAKS
        for message in held:
            self._arrive(message)
