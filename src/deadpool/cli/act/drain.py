"""`deadpool node drain`: take a node out of a running job without losing a step."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.given_number import check_at_least
from deadpool.cli.run_argument import for_a_job
from deadpool.cli.shared_options import Json, WaitS


@for_a_job(formerly="node")
def drain(
    run: Path | None,
    node: Annotated[str | None, typer.Option(help="the node that is to leave")] = None,
    wait: Annotated[bool, typer.Option(help="wait until it has left, or until it is clear that it stays")] = True,
    wait_s: WaitS = 1800.0,
    json: Json = False,
) -> None:
    """Take a node out of a running job: a spare takes its ranks between two steps, no step is computed again, and then
    the node's agent ends. A spare leaves at once. Refused while no spare can take the ranks, and during a recovery."""
    from deadpool.cli.act.drain_wait import await_departure
    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.errors import ConfigError

    if node is None:
        raise ConfigError(
            "no node was chosen: name the one that is to leave, as in --node n3 (deadpool status lists all)"
        )
    if not node:
        raise ConfigError("node='' cannot be used: give the name of a node, as `deadpool status` does")
    check_at_least(0, wait_s=wait_s)
    folder = find_run_dir(run)
    body = ask(folder, "drain", node=node)
    if wait:
        await_departure(folder, node, wait_s)
    told = f"its ranks {body['ranks']} go to node {body['successor']}" if body["ranks"] else "it was a spare"
    print(json_format.dumps(body) if json else f"node {node} {'has left' if wait else 'leaves'}: {told}")
