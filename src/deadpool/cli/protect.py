"""`deadpool protect`: change how the snapshots of a running job are protected."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer


def protect(
    scheme: Annotated[str, typer.Argument(help="copies=N, rs(K,M), or auto: the job chooses again, within its bounds")],
    run_dir: Annotated[Path | None, typer.Option(help="the job's run folder (default: the newest one here)")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Protect the snapshots of a running job in another way: all ranks stop between two steps, copies go to their new
    places, and no step is computed again. Until they are there the old ones stay. `deadpool status` says when every
    version is protected. The job does not undo what was asked for here, unless it is asked for auto."""
    from deadpool.cli.job_client import ask, find_run_dir

    body = ask(find_run_dir(run_dir), "protect", scheme=scheme)
    now, before = body["scheme"], body["before"]
    told = f"protected by {now} instead of {before}" if now != before else f"protected by {now}, as before"
    print(json_format.dumps(body) if json else told)
