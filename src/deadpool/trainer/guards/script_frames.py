"""The frames of the script that stand around its loop, and the objects in their variables.

While a guard is asked, the script waits in `for step in job.steps(n)` or `next(steps)`: its frames are on the stack,
between those of DeadPool that called the script and those of the step. Frames of libraries in between, such as a
progress bar around the steps, are left out. No frame is kept, because that would keep what its variables hold.
"""

from __future__ import annotations

import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_INNER_DEPTH = 3  # of containers and of the script's own objects, such as a trainer's `self`
_LONGEST = 100  # containers with more are data
_OWN = str(Path(__file__).parents[2])
_PATHS = sysconfig.get_paths()
_NOT_THE_SCRIPTS = tuple(
    f"{folder.rstrip('/')}/"
    for folder in {*(_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), _OWN}
)


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
    if depth == 0 or id(value) in seen:
        return
    inner = _inside(path, value)
    if inner:
        seen.add(id(value))
    for name, each in inner:
        yield from _walk(name, each, is_wanted, depth - 1, seen)


def _inside(path: str, value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if kind in (list, tuple) and len(value) < _LONGEST:
        return [(f"{path}[{index}]", each) for index, each in enumerate(value)]
    if kind is dict and len(value) < _LONGEST:
        return [(f"{path}[{key!r}]", each) for key, each in value.items() if isinstance(key, (str, int))]
    if not isinstance(value, (type, types.ModuleType, types.FunctionType)) and _is_own_class(kind):
        attributes = getattr(value, "__dict__", None)
        return [(f"{path}.{name}", each) for name, each in attributes.items()] if isinstance(attributes, dict) else []
    return []


def _is_own_class(kind: type) -> bool:
    """Whether the script has defined it."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" or (isinstance(file, str) and is_of_script(str(Path(file))))
