"""`deadpool kill`: inject a fault into a running job."""

from __future__ import annotations

import json as json_format
import signal as signals
from pathlib import Path
from typing import Annotated

import typer


def kill(
    node: Annotated[str | None, typer.Option(help="a whole node: its agent and all its trainers")] = None,
    rank: Annotated[int | None, typer.Option(help="the one trainer that holds this rank")] = None,
    signal: Annotated[str, typer.Option(help="which signal")] = "SIGKILL",
    run_dir: Annotated[Path | None, typer.Option(help="the job's run folder; default: the newest one here")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Send a signal to a node or to the trainer of a rank, as a machine or an operator would."""
    from deadpool.cli.asking import ask, find_run_dir
    from deadpool.errors import ConfigError

    if (node is None) == (rank is None):
        raise ConfigError("give either --node NAME or --rank N")
    name = signal.upper() if signal.upper().startswith("SIG") else f"SIG{signal.upper()}"
    if name not in signals.Signals.__members__:
        raise ConfigError(f"signal={signal!r} is not a signal: give e.g. SIGKILL, SIGSTOP, SIGTERM")
    body = ask(find_run_dir(run_dir), "kill", node=node, rank=rank, signal=int(signals.Signals[name]))
    place = f"rank {rank} on node {body['node']}" if rank is not None else f"node {body['node']}"
    print(json_format.dumps(body) if json else f"sent {name} to {place}")
