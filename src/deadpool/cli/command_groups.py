"""Groups whose commands are found when they are called: those of the lab, and those that had other names before.

`deadpool lab` is what a developer needs. It comes from another package, torch-deadpool-lab, as do the long runs of
`deadpool plan --simulate`. Its entry points are looked up only where one of these is asked for.

Names that commands had before they were put into groups work for one release, and `--help` lists none.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from deadpool.errors import ConfigError

_GROUP = "deadpool.lab"
LAB_COMMANDS = {
    "sim": "Run the protocol's cores in a simulated world, seed by seed, under checkers.",
    "chaos": "Kill, stop, cut off and damage nodes of small jobs, and compare the results bit for bit.",
    "corruption": "Let devices of one job err in audited steps, and count which errors are found and named.",
}

NEW_NAMES = {
    "story": "show story",
    "top": "show top",
    "logs": "show logs",
    "journal": "show journal",
    "dashboard": "show dashboard",
    "report": "show report",
    "picture": "show picture",
    "trace": "show trace",
    "drain": "node drain",
    "replace": "node replace",
    "kill": "node kill",
    "protect": "job protect",
    "audit": "job audit",
    "salvage": "durable salvage",
    "sim": "lab sim",
    "chaos": "lab chaos",
}
"""The commands that have moved, by the old name."""


def load_from_lab(name: str) -> Any:
    """Raises ConfigError if the lab is not installed, or is one that does not have this yet."""
    try:
        for found in entry_points(group=_GROUP, name=name):
            return found.load()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("deadpool_lab"):
            raise
    else:
        if len(entry_points(group=_GROUP)):
            raise ConfigError(
                f"the installed torch-deadpool-lab is older than this DeadPool and has no '{name}': `pip install "
                "./lab` in a clone of the repository brings it up to date"
            )
    raise ConfigError(
        "this is in the package torch-deadpool-lab, which is not installed. It is for developers of DeadPool: "
        "`pip install ./lab` in a clone of the repository brings it"
    )


class LabCommands(TyperGroup):
    """The commands of the lab, each of which is read when it is called. The help of all names them without."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        return (name, lab_command(name), args[1:]) if name in LAB_COMMANDS else super().resolve_command(ctx, args)


lab_app = typer.Typer(
    cls=LabCommands, help="Test DeadPool itself (torch-deadpool-lab, for its developers).", no_args_is_help=True
)
for _name, _meaning in LAB_COMMANDS.items():
    lab_app.command(_name, help=_meaning)(lambda: None)


def lab_command(name: str) -> Any:
    single = typer.Typer(add_completion=False)
    single.command(name)(load_from_lab(name))
    return typer.main.get_command(single)


class CommandsByOldNames(TyperGroup):
    """Takes an old name as the new one, so that all that follows is read and told as under the new one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (new := NEW_NAMES.get(args[0])) is not None:
            print(f"deadpool {args[0]} is now: deadpool {new}", file=sys.stderr)
            args = [*new.split(), *args[1:]]
        return super().resolve_command(ctx, args)
