"""Plain values that the script keeps elsewhere than in the variables of its loop, and that its steps change.

The bytecode of a loop says which of its variables are carried (state_in_variables.py). It does not say what called
functions store, nor what changes inside of an object. So here values are compared: what the script's own objects,
containers, closures, classes, modules, iterators and generators hold at two boundaries.

A place counts as carried if everything on the way to it is the same object as before, and its value is another one: a
list that grew, an attribute that counts, a tensor in a dictionary that was written. A dictionary or a set that only
gets new entries may be a cache: it counts if it has grown by an entry per step at several looks in a row. An attribute,
a closure or a global that holds another tensor or container than before may be the batch of the step: rebound.py finds
out whether it is read before it is stored.

Where the values are is found by script_walk.py. What they are for cannot be seen, so this is told in milder words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.guards.guard import Findings, is_due
from deadpool.trainer.guards.rebound import AttributeWatch, Binding, Identities, is_read_first
from deadpool.trainer.guards.script_objects import DictEntries
from deadpool.trainer.guards.script_walk import MOST_OF_A_VARIABLE, MOST_PLACES, ScriptPlace, ScriptWalk
from deadpool.trainer.guards.state_in_variables import held_ids

_NAMED = 8
_GROWN_IN_A_ROW = 3
_OF_NAMES = re.compile(r"(\[-?\d+\]|~).*")  # an element of a list is called by the name of the list


class CarriedValues:
    def __init__(self, findings: Findings, state: ProtectedState) -> None:
        self._findings, self._state = findings, state
        self._before: dict[ScriptPlace, object] = {}
        self._bindings: dict[Binding, int] = {}
        self._same = Identities([])
        self._number = 0  # of the last look
        self._grown: dict[
            ScriptPlace, int
        ] = {}  # looks in a row at which something has only grown, by an entry per step
        self._watch = AttributeWatch()
        self._objects: dict[str, Any] = {}
        self._told: set[str] = set()
        self._has_told_cut_off = False
        self.enabled = True  # False: a library owns the loop, and its frames are not the script's

    def enter_step(self, number: int) -> None:
        self._watch.begin()

    def leave_step(self, number: int) -> None:
        """Attributes are watched in the block. For the rest, what is done behind the block belongs to the step too."""
        self._tell(self._watch.end())

    def at_boundary(self, number: int) -> None:
        self._same.let_go()
        if not self.enabled or not is_due(number):
            return
        walk = ScriptWalk(self._state)
        now = walk.values()
        moved = [place for place, value in now.items() if self._has_moved(place, value, number)]
        rebound = [key for key, value in walk.bindings.items() if self._is_rebound(key, id(value))]
        if moved or rebound:
            held = held_ids(self._state, walk.loaders)
            moved = [place for place in moved if walk.is_of_holder(place) or held.isdisjoint(walk.may_be_held(place))]
            moved = [place for place in moved if not walk.is_protected(place)]
            rebound = [key for key in rebound if key.owner_id not in held and not walk.is_protected(key)]
        self._objects = walk.objects
        self._watch.choose(rebound, walk.owners)
        self._before, self._same, self._number = now, Identities(walk.seen), number
        self._bindings = {key: id(value) for key, value in walk.bindings.items()}
        self._tell({place.name for place in moved} | {key.name for key in rebound if is_read_first(key, walk.owners)})
        if walk.cut_off and not self._has_told_cut_off:
            self._has_told_cut_off = True
            self._findings.tell_not_compared(_shortened(list(walk.cut_off)), MOST_OF_A_VARIABLE, MOST_PLACES)

    def take_objects(self) -> dict[str, Any]:
        """Modules, optimizers, generators and the like that the last look has found, by name. They are not kept."""
        taken, self._objects = self._objects, {}
        return taken

    def _has_moved(self, place: ScriptPlace, value: object, number: int) -> bool:
        before = self._before.get(place)
        if place not in self._before or before == value or not self._same.are_all(place.way):
            return False
        if not (
            isinstance(value, DictEntries) and isinstance(before, DictEntries) and value.has_only_more_than(before)
        ):
            return True
        is_steady = value.size - before.size >= number - self._number
        self._grown[place] = self._grown.get(place, 0) + 1 if is_steady else 0
        return self._grown[place] >= _GROWN_IN_A_ROW

    def _is_rebound(self, key: Binding, value_id: int) -> bool:
        before = self._bindings.get(key)
        is_known = before is not None and self._same.are_all((key.owner_id,))
        return is_known and (before != value_id or not self._same.are_all((value_id,)))

    def _tell(self, places: Iterable[str]) -> None:
        names = sorted({_OF_NAMES.sub("", each) for each in places} - self._told)
        if names:
            self._told.update(names)
            self._findings.tell_carried(_shortened(names))


def _shortened(names: list[str]) -> list[str]:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return [*names[:_NAMED], *more]
