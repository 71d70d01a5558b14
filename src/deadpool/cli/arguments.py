"""What is given on the command line: numbers and paths, options that several commands have, and RUN, the job's run
folder.

A number, folder or file that cannot be used is refused in the same words everywhere, before any work is done. Options
that several commands have mean the same in all of them.

Commands that act on a job have one grammar: `deadpool COMMAND [RUN] [--node N] [--rank N] [--cause C] ...`. RUN is by
default the newest job here. It is declared here, once, for all of them. So are the forms that came before it, which are
still taken and answered with the new form: `--run-dir PATH`, and an argument that was something else than RUN (`drain
n3`, `protect copies=2`, `story fault-1`, `journal FOLDER...`). What is there decides what an argument means: a folder
is a RUN, and a name that is no folder is what the command took before.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from deadpool.errors import ConfigError

RUN_HELP = "the job's run folder (default: the newest one here)"
_OLD_NAMES = {
    "node": re.compile(r"[^/]+"),
    "scheme": re.compile(r"copies=.*|rs\(.*|auto"),
    "cause": re.compile(r"(fault|drain|protection|growth)-\d+"),
}
"""What the argument of an old form looks like, by the option that takes it now."""
_OLD_FOLDERS = "folder"
"""The option for folders of journals, which were arguments too."""
_IN_A_RUN = ("job.json", "events.jsonl", "journal")


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


def for_a_job(*, formerly: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command its argument RUN. It gets the folder as `run`; None: the newest job's.

    `formerly` names the option that the argument of the old form is for."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(context: typer.Context, **arguments: Any) -> None:
            function(**_arguments_in_new_form(arguments, formerly, context))

        signature = _signature(function, several=formerly == _OLD_FOLDERS)
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        del call.__wrapped__  # type: ignore[attr-defined]
        return call

    return decorate


def _signature(function: Callable[..., None], *, several: bool) -> inspect.Signature:
    kind: Any = list[Path] | None if several else Path | None
    run = Annotated[
        kind, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False, parser=folder_given_as("RUN"))
    ]
    run_dir = Annotated[Path | None, typer.Option("--run-dir", hidden=True, parser=folder_given_as("--run-dir"))]
    own = [each for each in inspect.signature(function, eval_str=True).parameters.values() if each.name != "run"]
    return inspect.Signature(
        [
            _keyword("context", typer.Context, inspect.Parameter.empty),
            _keyword("run", run),
            *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own),
            _keyword("run_dir", run_dir),
        ]
    )


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _arguments_in_new_form(arguments: dict[str, Any], formerly: str | None, context: typer.Context) -> dict[str, Any]:
    """The arguments of the command. Tells the new form where an old one was given."""
    given, run_dir = arguments.pop("run"), arguments.pop("run_dir")
    words: list[Path] = given if isinstance(given, list) else [] if given is None else [given]
    was_old = formerly is not None and not arguments[formerly] and _is_old(words, formerly)
    if formerly is not None and was_old:
        arguments[formerly] = words if formerly == _OLD_FOLDERS else str(words[0])
        words = []
    if run_dir is not None and words:
        raise ConfigError(
            f"the run folder is given twice, as {words[0]} and as --run-dir {run_dir}: leave out --run-dir"
        )
    if len(words) > 1:
        raise ConfigError(f"{len(words)} run folders are given: name one job")
    run = words[0] if words else run_dir
    if was_old or run_dir is not None:
        option = formerly if was_old else None
        _tell_new_form(_command_names(context), run, option, arguments.get(option or ""))
    return {"run": run, **arguments}


def _is_old(words: list[Path], formerly: str) -> bool:
    if not words:
        return False
    if formerly == _OLD_FOLDERS:
        return len(words) > 1 or (words[0].is_dir() and not any((words[0] / name).exists() for name in _IN_A_RUN))
    return _OLD_NAMES[formerly].fullmatch(str(words[0])) is not None and not words[0].is_dir()


def _tell_new_form(names: list[str], run: Path | None, option: str | None, value: Any) -> None:
    words = ["deadpool", *names, *([] if run is None else [str(run)])]
    if option is not None:
        values = value if isinstance(value, list) else [value]
        words += [word for each in values for word in (f"--{option}", str(each))]
    print(f"deadpool: this form ends with the next release; the new one is: {shlex.join(words)}", file=sys.stderr)


def _command_names(context: Any) -> list[str]:
    """Returns the names of the command and of those that it is below, without the program's: that may be a path."""
    return [] if context.parent is None else [*_command_names(context.parent), context.info_name]
