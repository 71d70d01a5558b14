"""Options that several commands have: they mean the same in all of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TypeVar

import typer

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
