"""`deadpool replace`: drain the slowest node."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer


def replace(
    straggler: Annotated[bool, typer.Option("--straggler", help="the node that is slow all the time")] = False,
    wait: Annotated[bool, typer.Option(help="wait until it has left, or until it is clear that it stays")] = True,
    run_dir: Annotated[Path | None, typer.Option(help="the job's run folder (default: the newest one here)")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Drain the slowest of the nodes that `deadpool status` calls slow. For any other node use deadpool drain NODE."""
    from deadpool.cli.drain_wait import await_departure
    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.errors import ConfigError

    if not straggler:
        raise ConfigError("no node was chosen: give --straggler for the slowest node, or name one: deadpool drain NODE")
    folder = find_run_dir(run_dir)
    body = ask(folder, "replace")
    if wait:
        await_departure(folder, body["node"])
    slow = f"worked {body['own_s']} s at each step, the other nodes {body['usual_s']} s"
    print(json_format.dumps(body) if json else f"node {body['node']} {slow}; its ranks go to node {body['successor']}")
