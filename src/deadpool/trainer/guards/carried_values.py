"""Plain values that the script keeps elsewhere than in the variables of its loop, and that its steps change.

The bytecode of a loop says which of its variables are carried (state_in_variables.py). It does not say what called
functions store, nor what changes inside of an object. So here values are compared: what the script's own objects,
containers, closures, classes, modules, iterators and generators hold at two boundaries.

A place counts as carried if everything on the way to it is the same object as before, and its value is another one: a
list that grew, an attribute that counts, a tensor in a dictionary that was written. A dictionary or a set that only
gets new entries may be a cache: it counts if it has grown by an entry per step at several looks in a row. An attribute,
a closure or a global that holds another tensor or container than before may be the batch of the step: rebound.py finds
out whether it is read before it is stored.

Protected objects and what they lead to are left out, but for numbers of which the object's state_dict() tells nothing:
an average whose state has the tensors and not the count of updates.

What for cannot be seen, so this is told in milder words. Nothing is written, called or consumed here, but
state_dict() of objects that are protected.
"""

from __future__ import annotations

import functools
import gc
import operator
import re
import sys
import types
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from deadpool.snapshot.record.tensors import local_part
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.guards.carried_gradients import frames_of_script, is_of_script, is_own_class
from deadpool.trainer.guards.fingerprints import is_known_kind
from deadpool.trainer.guards.guard import Findings, is_due
from deadpool.trainer.guards.rebound import (
    OF_MODULES,
    AttributeWatch,
    Binding,
    BindingKind,
    Identities,
    Owners,
    cells_of,
    has_compiled,
    is_read_first,
)
from deadpool.trainer.guards.state_in_variables import held_ids, loop_stores

_DEPTH = 6  # of attributes, containers and closures below a variable
_MOST_PLACES = 4000  # in the order of the walk: the variables of the loop, of its modules, of other modules
_MOST_OF_A_VARIABLE = 1000  # more is data
_MOST_ITEMS = 64  # of longer containers only the last items are compared, and the length
_LAST_ITEMS = 2
_NAMED = 8
_SAMPLE_BYTES = 4096  # of an array of numpy
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, deque)
_LEFT_OUT = (DataLoader, Dataset, Sampler)  # data, and what loaders.py looks at
_BUILTIN_ITERATORS = ("builtins", "itertools")
_GROWN_IN_A_ROW = 3
_WITH_STORAGE = frozenset({Tensor, nn.Parameter})
_OF_NAMES = re.compile(r"(\[-?\d+\]|~).*")  # an element of a list is called by the name of the list


class _Place(NamedTuple):
    """`way`: the ids of the objects that lead there, and of the code whose variable is meant."""

    name: str
    way: tuple[int, ...]


class DictEntries(NamedTuple):
    """How many entries a dictionary or a set has, and which objects its keys name; of a big one only how many."""

    size: int
    ids: dict[Any, int | None]

    def has_only_more_than(self, before: DictEntries) -> bool:
        return self.size > before.size and (not self.ids or before.ids.items() <= self.ids.items())


class CarriedValues:
    def __init__(self, findings: Findings, state: ProtectedState) -> None:
        self._findings, self._state = findings, state
        self._before: dict[_Place, object] = {}
        self._bindings: dict[Binding, int] = {}
        self._same = Identities([])
        self._number = 0  # of the last look
        self._grown: dict[_Place, int] = {}  # looks in a row at which something has only grown, by an entry per step
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
        walk = _Walk(self._state)
        now = walk.values()
        moved = [place for place, value in now.items() if self._has_moved(place, value, number)]
        rebound = [key for key, value in walk.bindings.items() if self._is_rebound(key, id(value))]
        if moved or rebound:
            held = held_ids(self._state, walk.loaders)
            moved = [place for place in moved if walk.is_of_holder(place) or held.isdisjoint(place.way)]
            moved = [place for place in moved if not walk.is_protected(place)]
            rebound = [key for key in rebound if key.owner_id not in held and not walk.is_protected(key)]
        self._objects = walk.objects
        self._watch.choose(rebound, walk.owners)
        self._before, self._same, self._number = now, Identities(walk.seen), number
        self._bindings = {key: id(value) for key, value in walk.bindings.items()}
        self._tell({place.name for place in moved} | {key.name for key in rebound if is_read_first(key, walk.owners)})
        if walk.cut_off and not self._has_told_cut_off:
            self._has_told_cut_off = True
            self._findings.tell_not_compared(_shortened(list(walk.cut_off)), _MOST_OF_A_VARIABLE, _MOST_PLACES)

    def take_objects(self) -> dict[str, Any]:
        """Modules, optimizers, generators and the like that the last look has found, by name. They are not kept."""
        taken, self._objects = self._objects, {}
        return taken

    def _has_moved(self, place: _Place, value: object, number: int) -> bool:
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


class _Walk:
    """Goes through everything that the variables of the script lead to, once."""

    def __init__(self, state: ProtectedState) -> None:
        self._state, self._stateful = state, state.stateful
        self._modules = [(root, path, each) for root in state.modules for path, each in root.named_modules()]
        self._protected = {*(id(each) for _, _, each in self._modules), *state.param_ids, *map(id, state.holders)}
        self._ids: set[int] = set()
        self._of_holders: set[_Place] = set()
        self._found: dict[_Place, object] = {}
        self._tensors: dict[_Place, Tensor] = {}
        self.seen: list[object] = []
        self.bindings: dict[Binding, object] = {}
        self.owners = Owners()
        self.objects: dict[str, Any] = {}  # of kinds that state_in_variables.py compares
        self.loaders: list[Any] = []
        self._variable, self._limit = "", _MOST_PLACES  # the variable that is followed, and until how many places
        self.cut_off: dict[str, None] = {}  # variables of which not everything was followed, in their order

    def is_of_holder(self, place: _Place) -> bool:
        return place in self._of_holders

    def values(self) -> dict[_Place, object]:
        for name, each in self._stateful.items():
            self._go_through_holder(name, each)
        frames = frames_of_script()
        for frame in frames:
            if frame.f_locals is not frame.f_globals:
                own = loop_stores(frame.f_code, frame.f_lasti)
                self._go_through_variables("", frame.f_locals, own, (id(frame.f_code),))
        for frame in frames:
            own = loop_stores(frame.f_code, frame.f_lasti) if frame.f_locals is frame.f_globals else frozenset()
            self._go_through_globals("", frame.f_globals, own)
        for name, module in _modules_of_script():
            self._go_through_globals(f"{name}.", vars(module), frozenset())
        self._go_through_modules()
        return self._found

    def _go_through_modules(self) -> None:
        """Protected modules of the script: snapshots have no tensors in their attributes."""
        if has_compiled():
            return
        for root, path, module in self._modules:
            if is_own_class(type(module)) and type(module).get_extra_state is nn.Module.get_extra_state:
                for key in vars(module).keys() - OF_MODULES:
                    self._bind(
                        "attribute",
                        module,
                        key,
                        ".".join(filter(None, (type(root).__name__, path, key))),
                        vars(module)[key],
                    )

    def _go_through_globals(self, prefix: str, variables: Mapping[str, Any], own: frozenset[str]) -> None:
        if id(variables) not in self._ids:
            self._ids.add(id(variables))
            self._go_through_variables(prefix, variables, own, (id(variables),))
            for name, value in list(variables.items()):
                if name not in own and not name.startswith("__"):
                    self._bind("global", variables, name, prefix + name, value)

    def _go_through_variables(
        self, prefix: str, variables: Mapping[str, Any], own: frozenset[str], way: tuple[int, ...]
    ) -> None:
        """`own`: plain values that the loop itself stores are told by its bytecode."""
        for name, value in list(variables.items()):
            if not name.startswith("__") and not (name in own and isinstance(value, _PLAIN)):
                self._variable = prefix + name
                self._limit = min(len(self._found) + _MOST_OF_A_VARIABLE, _MOST_PLACES)
                self._go_through(prefix + name, value, way, _DEPTH)

    def _go_through_holder(self, name: str, holder: Any) -> None:
        """Notes the numbers of a protected object of the script that its state does not have."""
        if not is_own_class(type(holder)):
            return
        numbers = {key: each for key, each in _attributes(holder).items() if type(each) in (int, float)}
        if not numbers:
            return
        saved = set(_numbers_in(holder.state_dict(), _DEPTH))
        for key, each in numbers.items():
            if each not in saved:
                self._of_holders.add(_Place(f"{name}.{key}", (id(holder),)))
                self._note(f"{name}.{key}", (id(holder),), each)

    def _go_through(self, place: str, value: Any, way: tuple[int, ...], depth: int) -> None:
        if isinstance(value, _PLAIN):
            self._note(place, way, repr(value) if isinstance(value, float) else value)  # nan is not equal to itself
            return
        if isinstance(value, np.generic):
            self._note(place, way, repr(value))
            return
        if depth == 0 or id(value) in self._ids or self._is_left_out(value) or self._is_at_limit():
            self._collect(place, value)
            return
        self._ids.add(id(value))
        self.seen.append(value)
        way = (*way, id(value))
        for inner, each in _inside(place, value):
            self._go_through(inner, each, way, depth - 1)
        self._bind_inside(place, value)
        self._note(f"{place}~", way, _content_of(value))
        if isinstance(value, Tensor):
            self._tensors[_Place(f"{place}~", way)] = value

    def _is_at_limit(self) -> bool:
        """Notes the variable if so."""
        if len(self._found) < self._limit:
            return False
        self.cut_off[self._variable] = None
        return True

    def is_protected(self, place: _Place | Binding) -> bool:
        """Whether it is a tensor in the memory of what is protected, as what state_dict() returns is."""
        if isinstance(place, Binding) and place.kind == "attribute":
            return False  # it is told only if it is read before it is stored, which no view needs
        value = self._tensors.get(place) if isinstance(place, _Place) else self.bindings[place]
        return isinstance(value, Tensor) and _memory(value) in self._memory

    def _collect(self, place: str, value: Any) -> None:
        if isinstance(value, DataLoader):
            self.loaders.append(value)
        elif is_known_kind(value) and id(value) not in self._protected and id(value) not in self._ids:
            self._ids.add(id(value))
            self.objects[place] = value

    def _bind_inside(self, place: str, value: Any) -> None:
        """Notes what an object, a closure or a generator calls by a name of its own."""
        if isinstance(value, types.FunctionType):
            if is_of_script(value.__code__.co_filename):
                self.owners.add_function(value)
                for name, each in cells_of(value):
                    self._bind("closure", value, name, f"{place}:{name}", each)
        elif isinstance(value, types.GeneratorType):
            if value.gi_frame is not None and not value.gi_running and is_of_script(value.gi_code.co_filename):
                for name, each in value.gi_frame.f_locals.items():
                    self._bind("generator", value, name, f"{place}:{name}", each)
        elif not isinstance(value, (type, Tensor, *_CONTAINERS)) and is_own_class(type(value)):
            for name, each in vars(value).items() if hasattr(value, "__dict__") else ():
                self._bind("attribute", value, name, f"{place}.{name}", each)

    def _bind(self, kind: BindingKind, owner: Any, attribute: str, name: str, value: Any) -> None:
        is_kind = isinstance(value, (Tensor, np.ndarray, *_CONTAINERS)) or is_own_class(type(value))
        if is_kind and not self._is_left_out(value):
            key = Binding(kind, id(owner), attribute, name)
            self.bindings[key] = value
            self.owners.add(owner)

    def _is_left_out(self, value: Any) -> bool:
        return id(value) in self._protected or is_known_kind(value) or _is_data_source(type(value))  # type: ignore[arg-type]

    @functools.cached_property
    def _memory(self) -> set[int]:
        """Where the memory of protected tensors begins, and that of their gradients."""
        modules = [each for _, _, each in self._modules]
        inner = [each for module in modules for each in module._parameters.values() if each is not None]
        taken = [each for opt in self._state.optimizers for group in opt.param_groups for each in group["params"]]
        params = {id(each): each for each in (*inner, *taken)}.values()
        buffers = [each for module in modules for each in module._buffers.values() if each is not None]
        states = [part for opt in self._state.optimizers for each in opt.state.values() for part in _tensors_in(each)]
        gradients = [each.grad for each in params if each.grad is not None]
        return {_memory(each) for each in (*params, *buffers, *states, *gradients)} - {0}

    def _note(self, place: str, way: tuple[int, ...], value: object) -> None:
        if not self._is_at_limit():
            self._found.setdefault(_Place(place, way), value)


@functools.lru_cache(maxsize=4096)
def _is_data_source(kind: type) -> bool:
    return issubclass(kind, _LEFT_OUT)


def _tensors_in(value: Any) -> list[Tensor]:
    return [each for each in value.values() if isinstance(each, Tensor)] if isinstance(value, dict) else []


def _memory(tensor: Tensor) -> int:
    """Returns where its storage begins; 0: it has none."""
    local = tensor if type(tensor) in _WITH_STORAGE else local_part(tensor.detach())
    try:
        return local.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse tensors have none
        return 0


_not_the_scripts: set[str] = set()


def _modules_of_script() -> list[tuple[str, types.ModuleType]]:
    """A process has thousands of others, which are looked at once."""
    found = []
    for name in sys.modules.keys() - _not_the_scripts:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if isinstance(module, types.ModuleType) and isinstance(file, str) and is_of_script(file):
            found.append((name, module))
        else:
            _not_the_scripts.add(name)
    return sorted(found, key=lambda each: each[0])


def _content_of(value: Any) -> object:
    """What tells, without its parts, whether an object was changed in place."""
    if isinstance(value, Tensor):
        return 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else zlib.crc32(value.reshape(-1)[:_SAMPLE_BYTES].tobytes())
    if isinstance(value, (dict, set)):
        return DictEntries(
            len(value), {key: None if isinstance(each, _PLAIN) else id(each) for key, each in _items(value)}
        )
    if isinstance(value, _CONTAINERS):
        return len(value), [id(each) for _, each in _items(value) if not isinstance(each, _PLAIN)]
    if isinstance(value, types.GeneratorType):
        return value.gi_frame.f_lasti if value.gi_frame is not None else None
    if _is_builtin_iterator(value):
        return repr(value) if type(value).__name__ == "count" else operator.length_hint(value, -1)
    return None


def _inside(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object leads to, by the names that a reader of the script knows it by."""
    if isinstance(value, _CONTAINERS):
        yield from ((f"{place}[{key!r}]", each) for key, each in _items(value))
    elif isinstance(value, types.FunctionType):
        yield from _inside_function(place, value)
    elif isinstance(value, types.MethodType):
        yield from ((place, value.__self__), (place, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((place, value.func), (f"{place}:args", value.args), (f"{place}:args", value.keywords))
    elif isinstance(value, types.GeneratorType):
        if value.gi_frame is not None and not value.gi_running and is_of_script(value.gi_code.co_filename):
            yield from ((f"{place}:{name}", each) for name, each in value.gi_frame.f_locals.items())
    elif _is_builtin_iterator(value):
        yield from ((f"{place}~{index}", each) for index, each in enumerate(gc.get_referents(value)))
    elif isinstance(value, type):
        if is_own_class(value):
            yield from ((f"{value.__name__}.{name}", each) for name, each in vars(value).items() if _is_data(each))
    elif is_own_class(type(value)):
        yield from ((f"{place}.{name}", each) for name, each in _attributes(value).items())
        yield type(value).__name__, type(value)


def _inside_function(place: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if not is_of_script(function.__code__.co_filename):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{place}:{name}", cell.cell_contents
        except ValueError:  # it is empty
            continue
    yield from ((f"{place}:default~{index}", each) for index, each in enumerate(function.__defaults__ or ()))
    yield from ((f"{place}:{name}", each) for name, each in (function.__kwdefaults__ or {}).items())
    yield from ((f"{place}.{name}", each) for name, each in vars(function).items())


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Returns all items, or the last ones of a long container, because it grows there."""
    if isinstance(value, dict):
        items = list(value.items()) if len(value) <= _MOST_ITEMS else []
        return [(key, each) for key, each in items if isinstance(key, (str, int))]
    if isinstance(value, set):
        return [(each, each) for each in value if isinstance(each, (str, int))] if len(value) <= _MOST_ITEMS else []
    first = 0 if len(value) <= _MOST_ITEMS else len(value) - _LAST_ITEMS
    try:
        return [(index, value[index]) for index in range(first, len(value))]
    except IndexError:  # a thread of the script has taken something out
        return []


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", None) or {})
    for kind in type(value).__mro__ if is_own_class(type(value)) else ():
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _is_data(value: Any) -> bool:
    return isinstance(value, (*_PLAIN, *_CONTAINERS, Tensor)) or is_own_class(type(value))


def _is_builtin_iterator(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ in _BUILTIN_ITERATORS and hasattr(kind, "__next__") and kind is not types.GeneratorType


def _numbers_in(value: Any, depth: int) -> Iterator[float]:
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        yield value.item()
    elif depth and isinstance(value, dict):
        yield from (each for inner in value.values() for each in _numbers_in(inner, depth - 1))
    elif depth and isinstance(value, (list, tuple, deque)):
        yield from (each for inner in value for each in _numbers_in(inner, depth - 1))
