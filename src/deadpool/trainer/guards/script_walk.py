"""Goes through everything that the variables of the script lead to, once: which values there are, and at which places.

Protected objects and what they lead to are left out, but for numbers of which the object's state_dict() tells nothing:
an average whose state has the tensors and not the count of updates. Nothing is written or consumed here, and nothing
called but state_dict() of objects that are protected.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from deadpool.snapshot.record.tensors import local_part
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.guards.carried_gradients import frames_of_script, is_of_script, is_own_class
from deadpool.trainer.guards.fingerprints import is_known_kind
from deadpool.trainer.guards.hidden_places import SavedValues, module_places, process_settings
from deadpool.trainer.guards.rebound import OF_MODULES, Binding, BindingKind, Owners, cells_of, has_compiled
from deadpool.trainer.guards.script_objects import CONTAINERS, PLAIN, content_of, parts_of
from deadpool.trainer.guards.state_in_variables import loop_stores

_DEPTH = 6  # of attributes, containers and closures below a variable
MOST_PLACES = 4000  # in the order of the walk: the loop's variables, protected modules, other variables
MOST_OF_A_VARIABLE = 1000  # more is data
_LEFT_OUT = (DataLoader, Dataset, Sampler)  # data, and what loaders.py looks at
_WITH_STORAGE = frozenset({Tensor, nn.Parameter})


class ScriptPlace(NamedTuple):
    """`way`: the ids of the objects that lead there, and of the code whose variable is meant."""

    name: str
    way: tuple[int, ...]


class ScriptWalk:
    def __init__(self, state: ProtectedState) -> None:
        self._state, self._stateful = state, state.stateful
        self._modules = [(root, path, each) for root in state.modules for path, each in root.named_modules()]
        self._protected = {*(id(each) for _, _, each in self._modules), *state.param_ids, *map(id, state.holders)}
        self._ids: set[int] = set()
        self._of_holders: set[ScriptPlace] = set()
        self._owner_ids: set[int] = set()  # protected modules and parameters that lead to places which no snapshot has
        self._found: dict[ScriptPlace, object] = {}
        self._tensors: dict[ScriptPlace, Tensor] = {}
        self.seen: list[object] = []
        self.bindings: dict[Binding, object] = {}
        self.owners = Owners()
        self.objects: dict[str, Any] = {}  # of kinds that state_in_variables.py compares
        self.loaders: list[Any] = []
        self._variable, self._limit = "", MOST_PLACES  # the variable that is followed, and until how many places
        self.cut_off: dict[str, None] = {}  # variables of which not everything was followed, in their order

    def is_of_holder(self, place: ScriptPlace) -> bool:
        return place in self._of_holders

    def may_be_held(self, place: ScriptPlace) -> set[int]:
        """Returns the objects on the way to a place that a protected object may save."""
        return set(place.way) - self._owner_ids

    def values(self) -> dict[ScriptPlace, object]:
        for name, each in self._stateful.items():
            self._go_through_holder(name, each)
        for each in self._state.optimizers:
            self._go_through_holder(type(each).__name__, each)
        for name, each in process_settings():
            self._note(name, (), each)
        frames = frames_of_script()
        for frame in frames:
            if frame.f_locals is not frame.f_globals:
                own = loop_stores(frame.f_code, frame.f_lasti)
                self._go_through_variables("", frame.f_locals, own, (id(frame.f_code),))
        self._go_through_places_of_modules()
        for frame in frames:
            own = loop_stores(frame.f_code, frame.f_lasti) if frame.f_locals is frame.f_globals else frozenset()
            self._go_through_globals("", frame.f_globals, own)
        for name, module in _modules_of_script():
            self._go_through_globals(f"{name}.", vars(module), frozenset())
        self._bind_attributes_of_modules()
        return self._found

    def _go_through_places_of_modules(self) -> None:
        """Protected modules of the script: snapshots have no tensors in their attributes."""
        for root, path, module in self._modules:
            for place, owner, value in module_places(".".join(filter(None, (type(root).__name__, path))), module):
                self.seen.append(owner)
                self._owner_ids.add(id(owner))
                self._variable, self._limit = place, min(len(self._found) + MOST_OF_A_VARIABLE, MOST_PLACES)
                self._go_through(place, value, (id(owner),), _DEPTH)

    def _bind_attributes_of_modules(self) -> None:
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
            if not name.startswith("__") and not (name in own and isinstance(value, PLAIN)):
                self._variable = prefix + name
                self._limit = min(len(self._found) + MOST_OF_A_VARIABLE, MOST_PLACES)
                self._go_through(prefix + name, value, way, _DEPTH)

    def _go_through_holder(self, name: str, holder: Any) -> None:
        """Notes what a protected object of the script holds and its state does not have."""
        if not is_own_class(type(holder)):
            return
        saved = SavedValues(holder, lambda tensor: _memory(tensor) in self._memory)
        for key, value, content in saved.unsaved():
            way = (id(holder),) if isinstance(value, PLAIN) else (id(holder), id(value))
            self.seen += [] if isinstance(value, PLAIN) else [value]
            self._of_holders.add(ScriptPlace(f"{name}.{key}", way))
            self._note(f"{name}.{key}", way, content)

    def _go_through(self, place: str, value: Any, way: tuple[int, ...], depth: int) -> None:
        if isinstance(value, PLAIN):
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
        for inner, each in parts_of(place, value):
            self._go_through(inner, each, way, depth - 1)
        self._bind_inside(place, value)
        self._note(f"{place}~", way, content_of(value))
        if isinstance(value, Tensor):
            self._tensors[ScriptPlace(f"{place}~", way)] = value

    def _is_at_limit(self) -> bool:
        """Notes the variable if so."""
        if len(self._found) < self._limit:
            return False
        self.cut_off[self._variable] = None
        return True

    def is_protected(self, place: ScriptPlace | Binding) -> bool:
        """Whether it is a tensor in the memory of what is protected, as what state_dict() returns is."""
        if isinstance(place, Binding) and place.kind == "attribute":
            return False  # it is told only if it is read before it is stored, which no view needs
        value = self._tensors.get(place) if isinstance(place, ScriptPlace) else self.bindings[place]
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
        elif not isinstance(value, (type, Tensor, *CONTAINERS)) and is_own_class(type(value)):
            for name, each in vars(value).items() if hasattr(value, "__dict__") else ():
                self._bind("attribute", value, name, f"{place}.{name}", each)

    def _bind(self, kind: BindingKind, owner: Any, attribute: str, name: str, value: Any) -> None:
        is_kind = isinstance(value, (Tensor, np.ndarray, *CONTAINERS)) or is_own_class(type(value))
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
            self._found.setdefault(ScriptPlace(place, way), value)


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
