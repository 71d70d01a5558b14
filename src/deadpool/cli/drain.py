"""`deadpool drain`: a node hands over its ranks and leaves."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer


def drain(
    node: Annotated[str, typer.Argument(help="the node that is to leave")],
    wait: Annotated[bool, typer.Option(help="until it has left, or stays after all")] = True,
    run_dir: Annotated[Path | None, typer.Option(help="the job's run folder; default: the newest one here")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Take a node out of a running job: a spare takes its ranks between two steps, nothing is computed again, then the
    node's agent ends. A spare simply leaves. Refused where no spare could take the ranks, or a recovery is running."""
    from deadpool.cli.drain_wait import await_departure
    from deadpool.cli.job_client import ask, find_run_dir

    folder = find_run_dir(run_dir)
    body = ask(folder, "drain", node=node)
    if wait:
        await_departure(folder, node)
    told = f"its ranks {body['ranks']} go to node {body['successor']}" if body["ranks"] else "it was a spare"
    print(json_format.dumps(body) if json else f"node {node} {'has left' if wait else 'leaves'}: {told}")
