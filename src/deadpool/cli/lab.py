"""`deadpool lab`: what a developer needs. It comes from another package, torch-deadpool-lab, as do the long runs of
`deadpool plan --simulate`. Its entry points are looked up only where one of these is asked for."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from deadpool.errors import ConfigError

_GROUP = "deadpool.lab"
COMMANDS = {
    "sim": "Run the protocol's cores in a simulated world, seed by seed, under checkers.",
    "chaos": "Kill, stop, cut off and damage nodes of small jobs, and compare the results bit for bit.",
}


def load(name: str) -> Any:
    """Raises ConfigError if the lab is not installed."""
    try:
        for found in entry_points(group=_GROUP, name=name):
            return found.load()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("deadpool_lab"):
            raise
    raise ConfigError(
        "this is in the package torch-deadpool-lab, which is not installed. It is for developers of DeadPool: "
        "`pip install ./lab` in a clone of the repository brings it"
    )


class LabCommands(TyperGroup):
    """The commands of the lab, each of which is read when it is called. The help of all names them without."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        return (name, command(name), args[1:]) if name in COMMANDS else super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LabCommands, help="Test DeadPool itself (torch-deadpool-lab, for its developers).", no_args_is_help=True
)
for _name, _meaning in COMMANDS.items():
    app.command(_name, help=_meaning)(lambda: None)


def command(name: str) -> Any:
    single = typer.Typer(add_completion=False)
    single.command(name)(load(name))
    return typer.main.get_command(single)
