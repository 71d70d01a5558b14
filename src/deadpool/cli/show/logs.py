"""`deadpool show logs`: print the log of a rank, also around a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.given_number import check_at_least
from deadpool.cli.run_argument import for_a_job


@for_a_job()
def logs(
    run: Path | None,
    rank: Annotated[int | None, typer.Option(help="the rank, whichever process held it")] = None,
    trainer: Annotated[str | None, typer.Option(help="a trainer by its name, as in n1.0, instead of a rank")] = None,
    around: Annotated[
        str | None, typer.Option(help="a fault or drain, as in fault-2 (default: the newest lines)")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="lines before the fault, and after it")] = 20,
    folder: Annotated[
        Path | None, typer.Option("--logs", help="folder of an agent's logs (default: the one in the run folder)")
    ] = None,
) -> None:
    """Print what a rank has written. Around a fault that is the log of the process that was lost, or stopped there, and
    of the one that took its place. Also after the job has ended."""
    from deadpool.cli.job_client import events_of, find_run_dir, say_unwritten, unwritten_of
    from deadpool.control.launch.log_search import excerpt, holders
    from deadpool.errors import ConfigError
    from deadpool.events.story import LOG_LINES

    if (rank is None) == (trainer is None):
        raise ConfigError("give either --rank or --trainer: a log is that of one of them")
    check_at_least(1, lines=lines)
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"logs={str(folder)!r} is not a folder: give that of an agent's logs, on the agent's machine")
    job = find_run_dir(run)
    names = [trainer] if trainer is not None else holders(events_of(job), rank or 0, around)
    say_unwritten(unwritten_of(job, only=LOG_LINES))
    place, found = folder or job.logs, 0
    for name in names:
        part = excerpt(place, name, around, lines=lines)
        if part.path is None:
            print(f"== {name}: {_where_else(name, place)}")
            continue
        found += 1
        print(f"== {part.path}" + ("" if part.at_mark or around is None else f" (it has no mark of {around}: its end)"))
        for line in part.lines:
            print(line)
    if not found:
        raise typer.Exit(1)


def _where_else(name: str, place: Path) -> str:
    """Names of trainers are those of their nodes and a number: others are of none."""
    node, _, number = name.rpartition(".")
    if not node or not number.isdigit():
        return f"no log in {place} is of a trainer with this name: give one as `deadpool status` does, as in n1.0"
    return f"not in {place}. It ran on node {node}: look there, in the folder of its --logs"
