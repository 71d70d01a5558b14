"""`deadpool audit`: play a recovery for each kind of rank of a running job, and say whether its script is exact."""

from __future__ import annotations

import json as json_format
import time
from pathlib import Path
from typing import Annotated, Any

import typer

_ASK_S = 0.2


def audit(
    wait: Annotated[bool, typer.Option(help="wait for the verdict")] = True,
    run_dir: Annotated[Path | None, typer.Option(help="the job's run folder (default: the newest one here)")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Play a recovery without a loss, for one rank of each kind in turn: another process takes the rank, all ranks
    compute the last steps again, and digests of their state are compared. Exit code 1: the script is not exact."""
    from deadpool.cli.job_client import ask, find_run_dir

    folder = find_run_dir(run_dir)
    before = len(ask(folder, "status")["audit"]["verdicts"])
    ask(folder, "audit")
    if not wait:
        print("{}" if json else "asked for: deadpool status will have the verdict")
        return
    while (state := ask(folder, "status")["audit"])["under_way"]:
        time.sleep(_ASK_S)
    verdicts = state["verdicts"][before:]
    print(json_format.dumps(verdicts) if json else "\n".join(map(_line, verdicts)) or "no recovery could be played")
    if not verdicts or not all(each["exact"] for each in verdicts):
        raise typer.Exit(1)


def _line(verdict: dict[str, Any]) -> str:
    where = f"rank {verdict['replaced']} was replaced at step {verdict['step']}"
    if verdict["exact"]:
        return f"exact: {where}, and {verdict['ranks']} ranks computed the same again"
    return f"NOT EXACT: {where}, and {verdict['part']} of rank {verdict['rank']} differs ({verdict['rule']})"
