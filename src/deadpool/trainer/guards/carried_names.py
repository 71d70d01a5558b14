"""Reads a function's bytecode: which of its variables carry something from one step to the next?

A variable is carried if a step may store it and a later one may read it before it stores it: `best = min(best, loss)`,
`epoch += 1`. That says nothing about what the value is for: a sum that is only printed looks the same. Exceptions are
not followed, and attributes, containers and variables that called functions store are not seen. A loop inside of a step
is taken to run at least once: what it stores is there behind it.
"""

from __future__ import annotations

import dis
import re
from types import CodeType
from typing import NamedTuple

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
    stored = frozenset(name for offset in loop for name in places[offset].stores)
    return _read_first(places, loop, start) & stored


def _places(code: CodeType) -> dict[int, _Place]:
    instructions = list(dis.get_instructions(code))
    begins = {each.offset for each in instructions if each.opname == "FOR_ITER"}
    nexts = [each.offset for each in instructions[1:]] + [-1]
    found = {}
    for each, following in zip(instructions, nexts, strict=True):
        follows = [] if each.opname in (*_ENDS, *_JUMPS) or following < 0 else [_entry(following, begins)]
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            follows.append(each.argval)
        found[each.offset] = _Place(*_accesses(each), tuple(follows))
        if each.offset in begins:
            found[_entry(each.offset, begins)] = _Place(frozenset(), frozenset(), (following,))
    return found


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
    return frozenset[str]().union(*(live.get(each, frozenset()) for each in places[start].follows))
