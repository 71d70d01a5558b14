"""A machine's device: it computes what it should, or errs without a word in what ranks hold alike."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

from deadpool_lab.sim.checking.history import State, mix

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World

ONCE, ALWAYS, AT_RANDOM = "once", "always", "at random"


class Device:
    def __init__(self, world: World, node: str) -> None:
        self._world, self._node = world, node
        self._errs = ""  # once, always in the same way, or always and each time in another way; empty: it does not

    def begin_to_err(self, how: str) -> None:
        self._errs = how
        if how != ONCE:
            self._world.heal_at_peace(self._mend)

    def _mend(self) -> None:
        self._errs = ""

    def errs_in(self, state: State) -> State:
        """Returns the state after a step as this device has computed it."""
        if not self._errs:
            return state
        bits = 0 if self._errs == ALWAYS else self._world.rng.getrandbits(60)
        wrong = mix(state.replica, bits, zlib.crc32(self._node.encode()))  # no two devices err alike
        self._world.checkers.corruption.on_error(self._node, self._errs)
        if self._errs == ONCE:
            self._errs = ""
        return replace(state, replica=wrong)
