"""Reachability, and connections as TCP gives them: messages come in order, late, or not at all, never with a gap.

One direction between two places can be cut. What is sent meanwhile waits at the sender and comes late if the cut heals
in time; or the connection breaks, and the other end is not told. Two connections between the same places overtake each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World

Ends = tuple[str, str]
"""Sender and receiver."""
SLOW_SHARE, SLOW_FACTOR = 0.02, 10
RETRANSMIT_S = 3.0
"""The time from the end of a cut until the sender tries again."""
BREAK_SHARE = 0.3
"""Share of connections that do not outlive a cut."""


class VirtualNetwork:
    def __init__(self, world: World) -> None:
        self._world, self.clock = world, world.clock
        self.cuts: set[Ends] = set()
        self._waiting: dict[Ends, list[Link]] = {}

    def is_severed(self, one: str, other: str) -> bool:
        """No exchange that needs an answer gets through."""
        return bool(self.cuts) and ((one, other) in self.cuts or (other, one) in self.cuts)

    def cut(self, ends: Iterable[Ends], *, for_s: float | None) -> list[Ends]:
        """Cuts those of `ends` that are not cut already, and returns them. They heal after `for_s`, and at the latest
        when the liveness phase begins; None means never."""
        fresh = [each for each in dict.fromkeys(ends) if each not in self.cuts]
        self.cuts.update(fresh)
        self._world.log("world", "cut", {"links": " ".join(f"{a}>{b}" for a, b in fresh), "for_s": for_s})
        if for_s is not None:
            self._world.clock.after(for_s, partial(self.heal, fresh))
            self._world.heal_at_peace(partial(self.heal, fresh))
        return fresh

    def heal(self, ends: Iterable[Ends]) -> None:
        healed = [each for each in ends if each in self.cuts]
        self.cuts.difference_update(healed)
        for each in healed:
            for link in self._waiting.pop(each, []):
                self._world.after(RETRANSMIT_S, link.retransmit)

    def hold(self, link: Link, ends: Ends) -> None:
        self._waiting.setdefault(ends, []).append(link)


class Link:
    """One direction of one connection: first in, first out, each message delayed at random.

    Without `ends` it does not leave its machine. A link that was cut drops what it is given.
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

    def retransmit(self) -> None:
        """The sender tries again: all messages come at once, in order, or the connection was given up."""
        if self._ends in self._network.cuts:
            assert self._ends is not None
            self._network.hold(self, self._ends)
            return
        held, self._held = self._held, []
        self.cut |= self._random() < BREAK_SHARE
        for message in held:
            self._arrive(message)
