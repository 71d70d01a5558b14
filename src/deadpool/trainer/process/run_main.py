"""Runs the user's program in this process as a fresh interpreter would: `python script.py` or `python -m name`.

The script finds the same as there: `__main__` with all its attributes, sys.argv and sys.path, and a `__main__` that
still exists when exit handlers run. multiprocessing and pickle look all of this up, also in processes that they spawn.
"""

from __future__ import annotations

import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

MODULE_FLAG = "-m"


def run_program(command: list[str]) -> None:
    """`command` is what would follow `python`: a path, or `-m` and a name, and then the program's own arguments."""
    sys.orig_argv = [sys.executable, "-u", *command]  # unbuffered, as torchrun runs a script
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    if command[0] == MODULE_FLAG:
        _run_module(command[1], command[2:])
    else:
        _run_path(main, command[0], command[1:])


def _run_module(name: str, arguments: list[str]) -> None:
    """Runs the module in the namespace of `__main__`, with its `__spec__`. A name that cannot be found ends in a
    SystemExit that says so, as with `python -m`."""
    sys.argv = [MODULE_FLAG, *arguments]
    sys.path[0] = str(Path.cwd())
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _run_path(main: types.ModuleType, script: str, arguments: list[str]) -> None:
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    path = os.path.abspath(script)  # noqa: PTH100 (like python, without resolving links in __file__)
    if Path(path).is_dir() or path.endswith((".zip", ".pyz", ".pyc")):
        runpy.run_path(path, run_name="__main__")  # rare cases, left to python
        return
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader, __package__=None, __annotations__={})
    code = compile(loader.get_data(path), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)
