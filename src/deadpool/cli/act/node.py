"""`deadpool node`: take a node out of a running job, or hit one.

`await_departure`: how a command waits for a node to leave: it asks the coordinator, so that it also works from
another machine.

`drain`: `deadpool node drain`: take a node out of a running job without losing a step.

`replace`: `deadpool node replace`: drain the slowest node.

`kill`: `deadpool node kill`: inject a fault into a running job.

`flip`: `deadpool node flip`: let a device err without a word, in a job that was started for drills.
"""

from __future__ import annotations

import json as json_format
import signal as signals
import time
from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.given import Json, WaitS, check_at_least
from deadpool.cli.job_client import ask
from deadpool.cli.run_argument import for_a_job
from deadpool.config.orders import FLIPS, MOMENTS
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError

_ASK_S = 0.2


def await_departure(folder: RunDir, node: str, wait_s: float) -> None:
    """Raises ConfigError if the node is still in the job and no longer being drained, or still being drained after
    `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        status = ask(folder, "status")
        if node not in [each["node"] for each in status["nodes"]]:
            return
        if status["drain"] is None or status["drain"]["node"] != node:
            raise ConfigError(
                f"node {node} was not drained and stays in the job: {folder.events} says why (event drain_failed); "
                "drain it again when the job runs"
            )
        if time.monotonic() > deadline:
            raise ConfigError(
                f"node {node} has not left within {wait_s:g} s, and is still being drained: `deadpool status "
                f"{folder.path}` says how far that is, and --wait-s waits longer"
            )
        time.sleep(_ASK_S)


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


@for_a_job()
def replace(
    run: Path | None,
    straggler: Annotated[bool, typer.Option("--straggler", help="the node that is slow all the time")] = False,
    wait: Annotated[bool, typer.Option(help="wait until it has left, or until it is clear that it stays")] = True,
    wait_s: WaitS = 1800.0,
    json: Json = False,
) -> None:
    """Drain the slowest of the nodes that `deadpool status` calls slow. For another use deadpool node drain --node."""
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


_AT_HELP = "wait for this moment of --step: " + "; ".join(f"{word}: {when}" for word, when in MOMENTS.items())


@for_a_job()
def kill(
    run: Path | None,
    node: Annotated[str | None, typer.Option(help="hit a whole node: its agent and all its trainers")] = None,
    rank: Annotated[int | None, typer.Option(help="hit the one trainer that holds this rank")] = None,
    at: Annotated[str | None, typer.Option(help=_AT_HELP)] = None,
    step: Annotated[int | None, typer.Option(help="the step N of --at; 0 is the first step of the job")] = None,
    signal: Annotated[str, typer.Option(help="the signal to send")] = "SIGKILL",
    json: Json = False,
) -> None:
    """Send a signal to a node, or to the trainer of a rank: now, or at a moment of training."""
    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.config.orders import InjectionOrder, signal_number

    order = InjectionOrder(node=node, rank=rank, signal=signal_number(signal), at=at, step=step).checked()
    body = ask(find_run_dir(run), "kill", node=node, rank=rank, signal=order.signal, at=at, step=step)
    name = signals.Signals(order.signal).name
    place = f"rank {rank} on node {body['node']}" if rank is not None else f"node {body['node']}"
    told = f"sent {name} to {place}" if at is None else f"{name} is ordered for {place}: {order.moment()}"
    print(json_format.dumps(body) if json else told)


@for_a_job()
def flip(
    run: Path | None,
    rank: Annotated[int | None, typer.Option(help="the rank whose device errs")] = None,
    step: Annotated[int | None, typer.Option(help="the step after whose optimizer it errs; 0 is the first one")] = None,
    what: Annotated[str, typer.Option(help=f"whose bit flips: {', '.join(FLIPS)}")] = "parameter",
    always: Annotated[bool, typer.Option("--always", help="in each later step too, whichever rank it serves")] = False,
    json: Json = False,
) -> None:
    """Let the device of a rank err without a word: one bit of its state flips. Only in a job started with --drills."""
    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.config.orders import flip_order

    order = flip_order(rank, what, step, lasts=always)
    asked = {"rank": rank, "signal": 0, "at": order.at, "step": step, "flip": what, "lasts": always}
    body = ask(find_run_dir(run), "kill", **asked)
    print(json_format.dumps(body) if json else f"ordered for rank {rank} on node {body['node']}: {order.moment()}")
