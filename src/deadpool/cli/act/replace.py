"""`deadpool node replace`: drain the slowest node."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.given_number import check_at_least
from deadpool.cli.run_argument import for_a_job
from deadpool.cli.shared_options import Json, WaitS


@for_a_job()
def replace(
    run: Path | None,
    straggler: Annotated[bool, typer.Option("--straggler", help="the node that is slow all the time")] = False,
    wait: Annotated[bool, typer.Option(help="wait until it has left, or until it is clear that it stays")] = True,
    wait_s: WaitS = 1800.0,
    json: Json = False,
) -> None:
    """Drain the slowest of the nodes that `deadpool status` calls slow. For another use deadpool node drain --node."""
    from deadpool.cli.act.drain_wait import await_departure
    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.errors import ConfigError

    if not straggler:
        raise ConfigError(
            "no node was chosen: give --straggler for the slowest one, or name one: deadpool node drain --node n3"
        )
    check_at_least(0, wait_s=wait_s)
    folder = find_run_dir(run)
    body = ask(folder, "replace")
    if wait:
        await_departure(folder, body["node"], wait_s)
    slow = f"worked {body['own_s']} s at each step, the other nodes {body['usual_s']} s"
    print(json_format.dumps(body) if json else f"node {body['node']} {slow}; its ranks go to node {body['successor']}")
