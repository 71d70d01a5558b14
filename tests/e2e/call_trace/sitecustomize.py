"""Writes down when named functions are called, in every process of a job, without a change to the package.

CALL_TRACE names a folder: `functions` in it has one function per line, as `deadpool.module Class.method`. Each call
becomes a line `time function` of the file `calls`. Python imports this module before anything else where its folder is
on the path.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["CALL_TRACE"])
WANTED = [line.split() for line in (FOLDER / "functions").read_text().splitlines()]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in {module for module, _ in WANTED}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        for name, function in WANTED:
            if name == module.__name__:
                _trace(module, function)


def _trace(module, function):
    *holder, name = function.split(".")
    owner = functools.reduce(getattr, holder, module)
    original = vars(owner)[name]

    @functools.wraps(original)
    def traced(*args, **kwargs):
        line = f"{time.time():.6f} {module.__name__} {function}\n".encode()
        os.write(_file(), line)
        return original(*args, **kwargs)

    setattr(owner, name, traced)


@functools.cache
def _file():
    return os.open(FOLDER / "calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


sys.meta_path.insert(0, _Finder())
