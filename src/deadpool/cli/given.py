"""What is given on the command line: numbers, paths, options that many commands have.

`check_at_least` and `check_more_than`: Numbers that are given on the command line: one that cannot be used is
refused in the same words everywhere.

Folders and files that are given on the command line: what cannot be used is refused before any work is done.

`in_new_form` options that several commands have: they mean the same in all of them.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from deadpool.errors import ConfigError


def check_at_least(least: float, **values: float | None) -> None:
    """Each by the name of its option; None was not given. Infinity and "not a number" are refused too."""
    for name, value in values.items():
        if value is not None and not least <= value < math.inf:
            _refuse(name, value, f"at least {_text(least)}")


def check_more_than(least: float, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not least < value < math.inf:
            _refuse(name, value, f"more than {_text(least)}")


def _refuse(name: str, value: float, what: str) -> None:
    unit = " s" if name.endswith("_s") else ""
    raise ConfigError(f"{name}={_text(value)} cannot be used: give {what}{unit}")


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def folder_given_as(name: str) -> Callable[[str], Path]:
    """For typer, which takes an empty text for the current folder."""

    def path(text: str) -> Path:
        if not str(text):
            raise ConfigError(
                f"{name} is empty, perhaps from a variable of the shell that is not set: give a folder, or leave it out"
            )
        return Path(text)

    return path


def check_health_root(root: str) -> None:
    """What stands before {node} is a folder here, where each node has its own below it."""
    place = root.partition("{node}")[0] or "."
    if not Path(place).is_dir():
        raise ConfigError(
            f"health_root={root!r} cannot be used: {place} is no folder. Give the one with /proc, /sys and /dev of the "
            "node, as in --health-root /"
        )


def check_output(file: Path | None, name: str) -> None:
    """Checks that a file can be written there, so that a command that works for minutes says so before that. The folder
    may have to be made; None means that no file is wanted."""
    if file is None:
        return
    place = next(each for each in file.absolute().parents if each.exists())
    if file.is_dir():
        reason = "it is a folder"
    elif not place.is_dir():
        reason = f"{place} is a file"
    elif not os.access(file if file.exists() else place, os.W_OK):
        reason = "this user cannot write there"
    else:
        return
    raise ConfigError(f"{name}={str(file)!r} cannot be used: {reason}. Give the path of a file that can be written")


def write_output(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Figures = Annotated[Path | None, typer.Option("--out", help="write the figures to this file, as JSON")]
WaitS = Annotated[float, typer.Option(help="seconds to wait at most; what was asked for goes on")]

OldFigures = Annotated[Path | None, typer.Option("--json", hidden=True)]
"""What was `--json FILE` is `--out FILE`: `--json` prints, in every command."""
OldTimeoutS = Annotated[float | None, typer.Option("--timeout-s", hidden=True)]
"""The old option of commands that wait for a job: it is `--wait-s`, as in the others."""

T = TypeVar("T")


def in_new_form(value: T, old: T | None, names: str) -> T:
    """The value of an option that had another name. `names`: the old and the new one."""
    if old is None:
        return value
    was, now = names.split()
    print(f"deadpool: {was} is now: {now}. The old name ends with the next release", file=sys.stderr)
    return old
