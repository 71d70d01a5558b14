"""`deadpool node kill`: inject a fault into a running job."""

from __future__ import annotations

import json as json_format
import signal as signals
from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.run_argument import for_a_job
from deadpool.cli.shared_options import Json
from deadpool.config.fault_orders import MOMENTS

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
    from deadpool.config.fault_orders import InjectionOrder, signal_number

    order = InjectionOrder(node=node, rank=rank, signal=signal_number(signal), at=at, step=step).checked()
    body = ask(find_run_dir(run), "kill", node=node, rank=rank, signal=order.signal, at=at, step=step)
    name = signals.Signals(order.signal).name
    place = f"rank {rank} on node {body['node']}" if rank is not None else f"node {body['node']}"
    told = f"sent {name} to {place}" if at is None else f"{name} is ordered for {place}: {order.moment()}"
    print(json_format.dumps(body) if json else told)
