"""Names of the script that hold another tensor or another container after each step: is the old one read in the next?

`self.hidden = hidden.detach()` and `self.batch = next(batches)` look the same from outside: an attribute holds another
tensor. The difference is what comes first in the next step. A name is carried if a step reads it before it stores it,
and stores it then.

    generators      their bytecode tells, as that of a loop does
    closures        the function that alone stores the variable reads it first, by its bytecode
    globals         the same, of the functions in their module
    attributes      bytecode does not tell of which object. So for one step a descriptor in the class says which comes
                    first; it reads and stores as before, and is taken away when the block ends

`Identities`: an id means one object as long as that lives. What has weak references is not kept alive; of containers
that is not possible, so those that only we have are let go at each boundary.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from torch import nn

from deadpool.trainer.guards.carried_gradients import frames_of_script, is_own_class
from deadpool.trainer.guards.state_in_variables import all_stores, carried_names, loop_stores, read_at_entry

_MOST_WATCHED = 32
_OURS = 3  # references to a container that nobody else has: from our list, from a variable and from the call
_ABSENT = object()

OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes of each module that torch makes itself."""

BindingKind = Literal["attribute", "closure", "generator", "global"]


class Binding(NamedTuple):
    """`owner_id` is that of the object, the function, the generator or the dictionary of globals."""

    kind: BindingKind
    owner_id: int
    attribute: str
    name: str  # by which a reader of the script knows it


class Identities:
    def __init__(self, seen: Iterable[object]) -> None:
        self._weak: dict[int, weakref.ref[Any]] = {}
        self._strong: dict[int, object] = {}
        self._heavy: list[int] = []  # containers that hold more than plain values
        self._gone: set[int] = set()
        for each in seen:
            try:
                self._weak[id(each)] = weakref.ref(each)
            except TypeError:
                self._strong[id(each)] = each
                if isinstance(each, (list, tuple, dict)) and not _is_plain(each):
                    self._heavy.append(id(each))

    def let_go(self) -> None:
        """Lets go of containers that the script has dropped: a tensor in one of them may be big."""
        dropped = [key for key in self._heavy if self._has_only(key)]
        for key in dropped:
            del self._strong[key]
        self._gone.update(dropped)
        self._heavy = [key for key in self._heavy if key in self._strong] if dropped else self._heavy

    def _has_only(self, key: int) -> bool:
        value = self._strong[key]
        return sys.getrefcount(value) <= _OURS

    def are_all(self, ids: Iterable[int]) -> bool:
        """Whether they mean the same objects as before. Those that were not seen, such as globals, live for ever."""
        return all(key not in self._gone and (key not in self._weak or self._weak[key]() is not None) for key in ids)


def _is_plain(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> bool:
    """By the last item, which is what the script has put into it most recently."""
    last = next(reversed(value.values() if isinstance(value, dict) else value), None)
    return isinstance(last, (bool, int, float, complex, str, bytes, type(None)))


class Owners:
    """What owns the names that were found."""

    def __init__(self) -> None:
        self._by_id: dict[int, Any] = {}
        self._functions: list[types.FunctionType] = []

    def add(self, owner: Any) -> None:
        self._by_id[id(owner)] = owner

    def add_function(self, function: types.FunctionType) -> None:
        self._functions.append(function)

    def __getitem__(self, owner_id: int) -> Any:
        return self._by_id[owner_id]

    def with_cell(self, cell: object) -> list[types.CodeType]:
        """The codes of functions that share a variable of a closure."""
        return [each.__code__ for each in self._functions if any(cell is other for other in each.__closure__ or ())]


def cells_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is empty
            continue


def is_read_first(key: Binding, owners: Owners) -> bool:
    """Whether the bytecode says that a later step reads what an earlier one has stored."""
    owner, name = owners[key.owner_id], key.attribute
    match key.kind:
        case "generator":
            return owner.gi_frame is not None and name in carried_names(owner.gi_code, owner.gi_frame.f_lasti)
        case "closure":
            cell = owner.__closure__[owner.__code__.co_freevars.index(name)]
            return _reads_what_it_stores(name, set(owners.with_cell(cell)))
        case "global":
            return _reads_what_it_stores(name, set(_codes_in(owner)))
        case "attribute":
            return False


def _reads_what_it_stores(name: str, codes: set[types.CodeType]) -> bool:
    """One function alone stores it, and reads it first. A loop that stores it, too, may do so before."""
    writers = [each for each in codes if name in all_stores(each) and _is_outside(name, each)]
    stored_by_loop = any(name in loop_stores(frame.f_code, frame.f_lasti) for frame in frames_of_script())
    return len(writers) == 1 and not stored_by_loop and name in read_at_entry(writers[0])


def _is_outside(name: str, code: types.CodeType) -> bool:
    """Whether the variable is not one of the function's own."""
    return name not in code.co_varnames and name not in code.co_cellvars


def _codes_in(variables: dict[str, Any]) -> Iterator[types.CodeType]:
    """Yields the code of the functions of a module, and of the methods of its classes."""
    for value in list(variables.values()):
        inner = vars(value).values() if isinstance(value, type) and is_own_class(value) else (value,)
        for each in inner:
            function = getattr(each, "__func__", each)
            if isinstance(function, types.FunctionType) and function.__globals__ is variables:
                yield from _with_inner(function.__code__)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _with_inner(each)


# --- attributes -------------------------------------------------------------------------------------------------------


def has_compiled() -> bool:
    """Whether torch.compile may have read classes of the script: those are left as they are."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


class AttributeWatch:
    """Which of some attributes are read first in a step, and stored then."""

    def __init__(self) -> None:
        self._chosen: dict[tuple[type, str], dict[int, tuple[weakref.ref[Any], str]]] = {}
        self._placed: list[_Watched] = []

    def choose(self, rebound: Iterable[Binding], owners: Owners) -> None:
        """Chooses which attributes are watched in the next step."""
        self._chosen = {}
        for key in rebound:
            owner = owners[key.owner_id] if key.kind == "attribute" else None
            if owner is not None and _is_watchable(type(owner), key.attribute) and len(self._chosen) < _MOST_WATCHED:
                names = self._chosen.setdefault((type(owner), key.attribute), {})
                names[key.owner_id] = weakref.ref(owner), key.name

    def begin(self) -> None:
        self.end()
        chosen, self._chosen = self._chosen, {}
        if chosen and not has_compiled():
            self._placed = [_Watched(kind, name, owners) for (kind, name), owners in chosen.items()]

    def end(self) -> set[str]:
        """Takes the descriptors away. Returns the names of what was read first, and stored."""
        placed, self._placed = self._placed, []
        for each in placed:
            each.take_away()
        return {name for each in placed for name in each.carried}


def _is_watchable(kind: type, name: str) -> bool:
    """Whether the instance alone decides what the attribute is, by its dictionary."""
    methods: tuple[Any, Any] = kind.__setattr__, kind.__getattribute__
    stores = methods[0] in (object.__setattr__, nn.Module.__setattr__)
    reads = methods[1] is object.__getattribute__
    of_class = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
    is_plain = not hasattr(type(of_class), "__get__")
    return stores and reads and is_plain and type(kind).__setattr__ is type.__setattr__


class _Watched:
    """A descriptor that reads and stores in the instance, as if it were not there."""

    def __init__(self, kind: type, name: str, owners: dict[int, tuple[weakref.ref[Any], str]]) -> None:
        self._kind, self._name, self._owners = kind, name, owners
        self._first: dict[int, str] = {}
        self.carried: set[str] = set()
        self._of_class = vars(kind).get(name, _ABSENT)
        self._inherited = next((vars(each)[name] for each in kind.__mro__[1:] if name in vars(each)), _ABSENT)
        setattr(kind, name, self)

    def take_away(self) -> None:
        if vars(self._kind).get(self._name) is not self:
            return
        if self._of_class is _ABSENT:
            delattr(self._kind, self._name)
        else:
            setattr(self._kind, self._name, self._of_class)

    @property
    def _default(self) -> Any:
        return self._of_class if self._of_class is not _ABSENT else self._inherited

    def __reduce__(self) -> tuple[Any, ...]:
        """A library that sends classes by value, in the middle of the step, sends what the class would have."""
        default = self._default
        return _as_it_is, (None if default is _ABSENT else default,)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        default = self._default
        if instance is not None:
            self._first.setdefault(id(instance), "read")
            if self._name in vars(instance):
                return vars(instance)[self._name]
        if default is _ABSENT:
            raise AttributeError(f"{(owner or type(instance)).__name__!r} object has no attribute {self._name!r}")
        return default

    def __set__(self, instance: Any, value: Any) -> None:
        known = self._owners.get(id(instance))
        if self._first.setdefault(id(instance), "stored") == "read" and known is not None and known[0]() is instance:
            self.carried.add(known[1])
        vars(instance)[self._name] = value

    def __delete__(self, instance: Any) -> None:
        self._first.setdefault(id(instance), "stored")
        if self._name not in vars(instance):
            raise AttributeError(self._name)
        del vars(instance)[self._name]


def _as_it_is(value: Any) -> Any:
    return value
