"""`deadpool drain`: take a node out of a running job without losing a step."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer


def drain(
    node: Annotated[str, typer.Argument(help="the node that is to leave")],
    wait: Annotated[bool, typer.Option(help="wait until it has left, or until it is clear that it stays")] = True,
    run_dir: Annotated[Path | None, typer.Option(help="the job's run folder (default: the newest one here)")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Take a node out of a running job: a spare takes its ranks between two steps, no step is computed again, and then
    the node's agent ends. A spare leaves at once. Refused while no spare can take the ranks, and during a recovery."""
    from deadpool.cli.drain_wait import await_departure
    from deadpool.cli.job_client import ask, find_run_dir

    folder = find_run_dir(run_dir)
    body = ask(folder, "drain", node=node)
    if wait:
        await_departure(folder, node)
    told = f"its ranks {body['ranks']} go to node {body['successor']}" if body["ranks"] else "it was a spare"
    print(json_format.dumps(body) if json else f"node {node} {'has left' if wait else 'leaves'}: {told}")
