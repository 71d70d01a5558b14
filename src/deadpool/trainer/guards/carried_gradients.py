"""Gradients that a script carries from one step to the next, and where it keeps them.

`CarriedGradients` finds gradients that one step leaves and a later step's optimizer uses: an optimizer that steps
every third step.

The contents of gradients are in no snapshot, so the step that is redone would begin with zeros. That a gradient is
alive at a boundary proves nothing, because most scripts drop it at the start of the next step. So for few parameters
it is looked at when the first gradient of a step arrives: is something there still? And it counts only if the
optimizer then takes it: a GAN's generator leaves gradients in the discriminator, which drops them before its own
turn. An optimizer that takes what nobody has touched since the boundary is named too.

Gradients that FSDP2 adds up in shards arrive otherwise, and are not seen here.

`is_of_script`, `frames_of_script` and `find_objects`: the frames of the script that stand around its loop, and the
objects in their variables.

While a guard is asked, the script waits in `for step in job.steps(n)` or `next(steps)`: its frames are on the stack,
between those of DeadPool that called the script and those of the step. Frames of libraries in between, such as a
progress bar around the steps, are left out. No frame is kept, because that would keep what its variables hold.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from deadpool.snapshot.record.tensors import local_part
from deadpool.trainer.guards.guard import Findings, Rule, is_due

_LOOKED_AT = 3
_MOST_ROUNDS = 64
"""Steps in a row in which a gradient that nobody takes is looked at."""


class CarriedGradients:
    def __init__(self, findings: Findings, optimizers: Sequence[Optimizer]) -> None:
        self._findings, self._optimizers = findings, optimizers
        self._watched: dict[int, _WatchedGradient] = {}  # by id of the parameter
        self._hooks: list[Any] = []
        self._number = 0
        self._rounds = 0
        self._is_done = False

    def enter_step(self, number: int) -> None:
        self._stop()
        self._number = number
        carried = {key for key, each in self._watched.items() if each.is_carried}
        self._rounds = self._rounds + 1 if carried else 0
        if self._is_done or not (is_due(number) or 0 < self._rounds < _MOST_ROUNDS):
            self._watched = {}
            return
        chosen = _choose([each for each in self._params() if each.requires_grad and each.grad is not None])
        self._watched = {id(param): _WatchedGradient(param, was_carried=id(param) in carried) for param in chosen}
        self._hooks = [each.watch() for each in self._watched.values()]
        if self._watched:
            self._hooks += [each.register_step_pre_hook(self._before_update) for each in self._optimizers]

    def leave_step(self, number: int) -> None:
        self._stop()

    def at_boundary(self, number: int) -> None:
        """What is done behind the block is not looked at."""

    def _params(self) -> Iterable[Tensor]:
        return (param for each in self._optimizers for group in each.param_groups for param in group["params"])

    def _before_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        own = {id(param) for group in optimizer.param_groups for param in group["params"]}
        watched = [each for key, each in self._watched.items() if key in own]
        has_closure = len(args) > 1 or bool(kwargs)  # which empties the gradients and makes others
        if not any(each.is_carried or (each.is_as_left and not has_closure) for each in watched):
            return
        self._is_done = True
        self._findings.report(
            Rule.KEPT_GRADIENTS,
            "Gradients of an earlier step are still there when the optimizer takes them: what was accumulated before "
            "a boundary is not restored, and would be missing where a step is redone.",
            step=self._number,
        )

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


class _WatchedGradient:
    """`is_carried`: what is in the gradient came in part from an earlier step."""

    def __init__(self, param: Tensor, was_carried: bool) -> None:
        self._param, self._is_first = param, True
        self._left = _content_of(param)
        self.is_carried = was_carried

    @property
    def is_as_left(self) -> bool:
        """Nothing has been written into the gradient since the boundary, and it is not empty. Only in host memory: a
        CUDA graph writes gradients, and nobody counts that."""
        is_same = self._is_first and self._left == _content_of(self._param)
        return is_same and self._param.device.type == "cpu" and _holds_something(self._param.grad)

    def watch(self) -> Any:
        return self._param.register_hook(self._on_arrival)

    def _on_arrival(self, _: Tensor) -> None:
        """Something was there before the first gradient of this step, and nobody has emptied it since."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        is_there = _holds_something(self._param.grad)
        self.is_carried = is_there and (self._is_first or self.is_carried)
        self._is_first = False


def _content_of(param: Tensor) -> tuple[int, int]:
    """Which gradient it is, and how often it was written."""
    gradient = param.grad
    return (id(gradient), local_part(gradient)._version) if gradient is not None else (0, 0)


def _choose(params: list[Tensor]) -> list[Tensor]:
    """The first, the last and one between."""
    places = sorted({0, len(params) // 2, len(params) - 1}) if params else []
    return [params[place] for place in places][:_LOOKED_AT]


def _holds_something(gradient: Tensor | None) -> bool:
    if gradient is None or gradient.layout is not torch.strided:
        return False
    return bool(local_part(gradient.detach()).any())


_INNER_DEPTH = 3  # of containers and of the script's own objects, such as a trainer's `self`
_MOST_ITEMS = 100  # containers with more are data
_MOST_SEEN = 2000  # containers and objects; more are data
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_OWN = str(Path(__file__).parents[2])
_PATHS = sysconfig.get_paths()
_NOT_THE_SCRIPTS = tuple(
    f"{folder.rstrip('/')}/"
    for folder in {*(_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), _OWN}
)


@functools.lru_cache(maxsize=8192)
def is_of_script(file: str) -> bool:
    return not file.startswith(("<frozen", *_NOT_THE_SCRIPTS)) and not _is_installed(file)


def _is_installed(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file


def frames_of_script() -> list[types.FrameType]:
    """Innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        if is_of_script(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def find_objects(frames: list[types.FrameType], is_wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """Returns the objects of a kind in the variables of these frames and of their modules, by the name that a reader of
    the script knows them by."""
    found: dict[int, tuple[str, Any]] = {}
    seen: set[int] = set()
    for frame in frames:
        for variables in (frame.f_locals, frame.f_globals):
            for name, value in list(variables.items()):
                for path, each in _walk(name, value, is_wanted, _INNER_DEPTH, seen):
                    found.setdefault(id(each), (path, each))
    return dict(found.values())


def _walk(
    path: str, value: Any, is_wanted: Callable[[Any], bool], depth: int, seen: set[int]
) -> Iterator[tuple[str, Any]]:
    if is_wanted(value):
        yield path, value
        return
    if depth == 0 or id(value) in seen or len(seen) > _MOST_SEEN:
        return
    inner = _inside(path, value)
    if inner:
        seen.add(id(value))
    for name, each in inner:
        if type(each) in _PLAIN:
            continue
        yield from _walk(name, each, is_wanted, depth - 1, seen)


def _inside(path: str, value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if kind in (list, tuple) and len(value) < _MOST_ITEMS:
        return [(f"{path}[{index}]", each) for index, each in enumerate(value)]
    if kind is dict and len(value) < _MOST_ITEMS:
        return [(f"{path}[{key!r}]", each) for key, each in value.items() if isinstance(key, (str, int))]
    if not isinstance(value, (type, types.ModuleType, types.FunctionType)) and is_own_class(kind):
        attributes = getattr(value, "__dict__", None)
        return [(f"{path}.{name}", each) for name, each in attributes.items()] if isinstance(attributes, dict) else []
    return []


def is_own_class(kind: type) -> bool:
    """Whether the script has defined it."""
    name = kind.__module__
    if name == "builtins" or name == "__main__":
        return name == "__main__"
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and is_of_script(file)
