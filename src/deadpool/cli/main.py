"""The `deadpool` command. There is one file per subcommand, which imports what it needs when it is called."""

from __future__ import annotations

import sys

import typer

from deadpool.cli import (
    agent,
    chaos,
    coordinator,
    demo,
    drain,
    journal,
    kill,
    picture,
    replace,
    run,
    salvage,
    sim,
    status,
    story,
)  # fmt: skip
from deadpool.errors import DeadPoolError

app = typer.Typer(
    help="Keeps a PyTorch training job running when machines die.", no_args_is_help=True, add_completion=False
)
SCRIPT_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": True}

app.command(context_settings=SCRIPT_LAST)(run.run)
app.command(context_settings=SCRIPT_LAST)(agent.agent)
app.command()(coordinator.coordinator)
app.command()(status.status)
app.command()(story.story)
app.command()(journal.journal)
app.command()(picture.picture)
app.command()(kill.kill)
app.command()(drain.drain)
app.command()(replace.replace)
app.command()(demo.demo)
app.command()(salvage.salvage)
app.command()(sim.sim)
app.command()(chaos.chaos)


def main() -> None:
    try:
        app()
    except DeadPoolError as error:
        print(f"deadpool: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
