"""A machine's device: it computes what it should, or errs without a word, in what ranks hold alike or in steps that are
audited."""

from __future__ import annotations

import zlib
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from deadpool_lab.sim.checking.history import State, Total, mix

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World

ONCE, ALWAYS, AT_RANDOM = "once", "always", "at random"


class Place(Enum):
    """Where a device errs in a step that is audited."""

    GRADIENT = "gradient"  # in what its rank gives to the sum
    UPDATE = "update"  # in the state of its rank
    SUM = "sum"  # in what it passes on to another rank


class Device:
    def __init__(self, world: World, node: str) -> None:
        self._world, self._node = world, node
        self._errs = ""  # once, always in the same way, or always and each time in another way; empty: it does not
        self._errs_in_audits: dict[Place, str] = {}  # how

    def begin_to_err(self, how: str) -> None:
        self._errs = how
        if how != ONCE:
            self._world.heal_at_peace(self._mend)

    def begin_to_err_in_audits(self, place: Place, how: str) -> None:
        self._errs_in_audits[place] = how
        self._world.heal_at_peace(self._mend)

    def _mend(self) -> None:
        self._errs = ""
        self._errs_in_audits.clear()

    # --- in any step --------------------------------------------------------------------------------------------------

    def errs_in(self, state: State) -> State:
        """Returns the state after a step as this device has computed it."""
        if not self._errs:
            return state
        wrong = self._changed(state.replica, self._errs)
        self._world.checkers.corruption.on_error(self._node, self._errs)
        if self._errs == ONCE:
            self._errs = ""
        return replace(state, replica=wrong)

    # --- in steps that are audited ------------------------------------------------------------------------------------

    def gradient_of(self, state: State) -> State:
        return replace(state, unique=self._in_audit(Place.GRADIENT, state.unique))

    def update_of(self, state: State) -> State:
        return replace(state, unique=self._in_audit(Place.UPDATE, state.unique))

    def passed_on(self, total: Total) -> Total:
        return self._in_audit(Place.SUM, total[0]), total[1]

    def _in_audit(self, place: Place, number: int) -> int:
        how, checker = self._errs_in_audits.get(place, ""), self._world.checkers.step_audits
        if not how or not checker.is_under_way:
            return number
        if how == ALWAYS and not checker.is_judged(self._node):
            return number  # nobody could find it
        checker.on_error(self._node, place, how)
        self._world.log("world", "device has erred", {"node": self._node, "place": place.value})
        if how == ONCE:
            del self._errs_in_audits[place]
        return self._changed(number, how)

    def _changed(self, number: int, how: str) -> int:
        bits = 0 if how == ALWAYS else self._world.rng.getrandbits(60)
        return mix(number, bits, zlib.crc32(self._node.encode()))  # no two devices err alike
