"""State that a script keeps in its variables, and how its bytecode tells.

`carried_names` reads a function's bytecode: which of its variables carry something from one step to the next?

A variable is carried if a step may store it and a later one may read it before it stores it: `best = min(best,
loss)`, `epoch += 1`. That says nothing about what the value is for: a sum that is only printed looks the same.
Exceptions are not followed, and attributes, containers and variables that called functions store are not seen. A
loop inside of a step is taken to run at least once: what it stores is there behind it.

`StateInVariables` finds state that the script keeps in variables and protect() does not know: no recovery brings it
to a newcomer.

Objects whose kind says that they are state, such as a scheduler, an average of the weights or a generator, are found
in the variables of the script's frames when its loop begins. One that is other than before when a later step ends,
and that no protected object leads to, is named.

Plain values that a step hands to the next one in a variable are told once, in milder words: whether `best` decides
something or is only printed cannot be seen. That ends no job.
"""

from __future__ import annotations

import dis
import functools
import random
import re
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.guards.carried_gradients import find_objects, frames_of_script
from deadpool.trainer.guards.fingerprints import Fingerprint, fingerprint, has_moved_on, is_known_kind
from deadpool.trainer.guards.guard import Findings, Rule, is_due

_ACCESS = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST|NAME|GLOBAL|DEREF|CLASSDEREF)(?![A-Z])")
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "RETURN_GENERATOR")
_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")


class _Place(NamedTuple):
    """One instruction: which variables it reads first, which it stores, and which instructions may follow."""

    reads: frozenset[str]
    stores: frozenset[str]
    follows: tuple[int, ...]


def carried_names(code: CodeType, at: int) -> frozenset[str]:
    """`at` is the offset of the instruction at which the function waits for its next step (f_lasti)."""
    places = _places(code)
    start = max((offset for offset in places if offset <= at), default=None)
    if start is None:
        return frozenset()
    loop = _loop_through(places, start)
    return _read_first(places, loop, start) & _stores(places, loop)


@functools.lru_cache
def loop_stores(code: CodeType, at: int) -> frozenset[str]:
    """The variables that the loop itself stores in which the function waits."""
    places = _places(code)
    start = max((offset for offset in places if offset <= at), default=None)
    return _stores(places, _loop_through(places, start)) if start is not None else frozenset()


@functools.lru_cache
def read_at_entry(code: CodeType) -> frozenset[str]:
    """The variables that a call of the function may read before it stores them."""
    places = _places(code)
    return _live(places, set(places))[min(places)]


@functools.lru_cache
def all_stores(code: CodeType) -> frozenset[str]:
    return _stores(_places(code), set(_places(code)))


def _stores(places: dict[int, _Place], loop: set[int]) -> frozenset[str]:
    return frozenset(name for offset in loop for name in places[offset].stores)


def _places(code: CodeType) -> dict[int, _Place]:
    instructions, real = _without_prefixes(code)
    begins = {each.offset for each in instructions if each.opname == "FOR_ITER"}
    nexts = [each.offset for each in instructions[1:]] + [-1]
    found = {}
    for each, following in zip(instructions, nexts, strict=True):
        follows = [] if each.opname in (*_ENDS, *_JUMPS) or following < 0 else [_entry(following, begins)]
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            follows.append(real.get(each.argval, each.argval))
        found[each.offset] = _Place(*_accesses(each), tuple(follows))
        if each.offset in begins:
            found[_entry(each.offset, begins)] = _Place(frozenset(), frozenset(), (following,))
    return found


def _without_prefixes(code: CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    """Long jumps have EXTENDED_ARG before them, and jumps to those lead to the prefix. Returns the instructions without
    prefixes, and which of them a prefix at an offset belongs to."""
    instructions, real, waiting = [], dict[int, int](), []
    for each in dis.get_instructions(code):
        if each.opname == "EXTENDED_ARG":
            waiting.append(each.offset)
            continue
        real |= dict.fromkeys(waiting, each.offset)
        waiting.clear()
        instructions.append(each)
    return instructions, real


def _entry(offset: int, begins: set[int]) -> int:
    """Offsets are even: before each `for` there is room for the place where its first turn begins."""
    return offset - 1 if offset in begins else offset


def _accesses(instruction: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """Some instructions read or store two variables, one after the other."""
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    reads, stores = set[str](), set[str]()
    for what, name in zip(_ACCESS.findall(instruction.opname), names, strict=False):
        if not isinstance(name, str):
            continue
        if what == "LOAD" and name not in stores:
            reads.add(name)
        elif what != "LOAD":
            stores.add(name)
    return frozenset(reads), frozenset(stores)


def _loop_through(places: dict[int, _Place], start: int) -> set[int]:
    """The instructions that may run between this one and its next turn."""
    before: dict[int, list[int]] = {}
    for offset, place in places.items():
        for each in place.follows:
            before.setdefault(each, []).append(offset)
    ahead = _reach(start, {offset: list(place.follows) for offset, place in places.items()})
    return ahead & _reach(start, before)


def _reach(start: int, edges: dict[int, list[int]]) -> set[int]:
    """Start itself only if a way leads back to it."""
    found, left = set[int](), list(edges.get(start, ()))
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += edges.get(each, ())
    return found


def _read_first(places: dict[int, _Place], loop: set[int], start: int) -> frozenset[str]:
    """The variables that may be read before they are stored, on some way that begins behind `start`."""
    live = _live(places, loop)
    return frozenset[str]().union(*(live.get(each, frozenset()) for each in places[start].follows))


def _live(places: dict[int, _Place], loop: set[int]) -> dict[int, frozenset[str]]:
    """What may be read before it is stored, from each of these instructions on."""
    live: dict[int, frozenset[str]] = dict.fromkeys(loop, frozenset())
    changed = True
    while changed:
        changed = False
        for offset in sorted(loop, reverse=True):
            place = places[offset]
            later = frozenset[str]().union(*(live.get(each, frozenset()) for each in place.follows))
            now = place.reads | (later - place.stores)
            if now != live[offset]:
                live[offset], changed = now, True
    return live


_DEPTH = 6  # of attributes and containers between a protected object and what its state_dict() may keep
_MOST = 20000  # objects that are looked at on the way
_MOST_ITEMS = 1000  # of one container: more are data
_NAMED = 8
_DEPTH_OF_VALUES = 3  # containers in containers
_REMEDY = "Pass it to protect() too: objects with state_dict() and load_state_dict() are restored."
_REMEDY_OF_GENERATORS = (
    "Keep it in an object with state_dict() and load_state_dict() and pass that to protect(), or seed it in each step "
    "from step.number."
)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), Tensor)


class StateInVariables:
    def __init__(self, findings: Findings, state: ProtectedState, others: Callable[[], dict[str, Any]] = dict) -> None:
        """`others` are objects that are found in other places than variables, by name."""
        self._findings, self._state, self._others = findings, state, others
        self._seen: dict[int, tuple[Callable[[], Any], Fingerprint]] = {}  # by id of the object, with the way to it
        self._known = set(map(id, state.optimizers))  # and those that were named, or that a protected object leads to
        self._has_begun = self._has_read_code = False
        self.enabled = True  # False: a library owns the loop, and its frames are not the script's

    def enter_step(self, number: int) -> None:
        if self.enabled and not self._has_begun:
            self._has_begun = True
            self._look()

    def leave_step(self, number: int) -> None:
        """What is done behind the block belongs to the step too."""

    def at_boundary(self, number: int) -> None:
        if not self.enabled or not is_due(number):
            return
        moved = self._look()
        if moved:
            self._name(moved, number)
        if not self._has_read_code:
            self._has_read_code = True
            self._tell_carried()

    def _look(self) -> dict[str, Any]:
        """Returns what has moved on since the last look, by name."""
        found = find_objects(frames_of_script(), is_known_kind)
        named = set(map(id, found.values()))
        found |= {name: each for name, each in self._others().items() if id(each) not in named and name not in found}
        protected = self._protected_ids()
        before, self._seen = self._seen, {}
        moved = {}
        for name, each in found.items():
            if id(each) in self._known or _is_global_generator(each):
                continue
            now = fingerprint(each, lambda part: id(part) in protected)
            self._seen[id(each)] = (_reference(each), now)
            if id(each) in before and before[id(each)][0]() is each and has_moved_on(before[id(each)][1], now):
                moved[name] = each
        if moved:
            held = held_ids(self._state)
            self._known |= {id(each) for each in moved.values()}
            moved = {name: each for name, each in moved.items() if id(each) not in held}
        return moved

    def _protected_ids(self) -> set[int]:
        modules = (each for module in self._state.modules for each in module.modules())
        return {*map(id, modules), *self._state.param_ids}

    def _name(self, moved: dict[str, Any], number: int) -> None:
        generators = {name for name, each in moved.items() if isinstance(each, _GENERATORS)}
        for names, remedy in ((moved.keys() - generators, _REMEDY), (generators, _REMEDY_OF_GENERATORS)):
            if names:
                kinds = ", ".join(f"{name} ({type(moved[name]).__name__})" for name in sorted(names)[:_NAMED])
                self._findings.report(
                    Rule.STATE_IN_VARIABLES,
                    f"Steps change what is in variables of the script and was not passed to protect(): {kinds}. A "
                    "process that takes a rank would not have it as it was.",
                    remedy=remedy,
                    step=number,
                    kind=min(names),
                )

    def _tell_carried(self) -> None:
        names = sorted(
            {
                name
                for frame in frames_of_script()
                for name in carried_names(frame.f_code, frame.f_lasti)
                if _is_plain(frame.f_locals.get(name, frame.f_globals.get(name)))
            }
        )
        if names:
            self._findings.tell_carried(names[:_NAMED])


def held_ids(state: ProtectedState, more_loaders: Iterable[Any] = ()) -> set[int]:
    """Everything that protected objects lead to, but not by way of protected modules, whose holders save none of
    them. A generator of a loader is the loader's business."""
    modules = {id(part) for each in state.modules for part in each.modules()}
    loaders = [*find_objects(frames_of_script(), lambda each: isinstance(each, DataLoader)).values(), *more_loaders]
    saving = (part for each in state.modules for part in each.modules() if _saves_more(part))
    level: list[Any] = [*state.holders, *loaders, *saving]
    held = set(map(id, level))
    for _ in range(_DEPTH):
        inner = {id(part): part for each in level for part in _inside(each) if id(part) not in held}
        held |= inner.keys()
        level = [part for part in inner.values() if id(part) not in modules]
        if len(held) > _MOST:
            break
    return held


def _saves_more(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _reference(value: Any) -> Callable[[], Any]:
    """Keeps no model alive. What has no weak references is small."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _is_plain(value: Any, depth: int = _DEPTH_OF_VALUES) -> bool:
    """Returns whether it is plain, or a container of plain values, such as a dictionary of parameters."""
    if isinstance(value, _PLAIN):
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set, deque)) else ()
    return depth > 0 and len(inner) > 0 and all(_is_plain(each, depth - 1) for each in islice(inner, _NAMED))


def _is_global_generator(value: Any) -> bool:
    """Snapshots have those."""
    if isinstance(value, torch.Generator):
        devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        return value is torch.default_generator or any(value is each for each in devices)
    return value is np.random.mtrand._rand or value is getattr(random, "_inst", None)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, (type, types.ModuleType, Tensor, str, bytes, int, float)):
        return []
    if isinstance(value, (dict, list, tuple, set)):
        return list(islice(value.values() if isinstance(value, dict) else value, _MOST_ITEMS))
    if isinstance(value, types.FunctionType):
        return _inside_function(value)
    slots = [getattr(value, name, None) for kind in type(value).__mro__ for name in _slots_of(kind)]
    own = vars(type(value)).get("state_dict")
    return [*slots, *getattr(value, "__dict__", {}).values(), *([own] if isinstance(own, types.FunctionType) else [])]


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _inside_function(function: Any) -> list[Any]:
    """What a state_dict() of the script reads from variables around it."""
    names = function.__code__.co_names
    cells = [each.cell_contents for each in function.__closure__ or () if _is_filled(each)]
    return [*cells, *(function.__globals__[name] for name in names if name in function.__globals__)]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
