"""`deadpool job`: how a running job is protected, and whether it is exact.

`protect`: `deadpool job protect`: change how the snapshots of a running job are protected.

`audit`: `deadpool job audit`: play a recovery for each kind of rank of a running job, and say whether its script is
exact.
"""

from __future__ import annotations

import json as json_format
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from deadpool.cli.given import Json, WaitS, check_at_least
from deadpool.cli.run_argument import for_a_job


@for_a_job(formerly="scheme")
def protect(
    run: Path | None,
    scheme: Annotated[
        str | None, typer.Option(help="copies=N, rs(K,M), or auto: the job chooses again, within its bounds")
    ] = None,
    json: Json = False,
) -> None:
    """Protect the snapshots of a running job in another way: all ranks stop between two steps, copies go to their new
    places, and no step is computed again. Until they are there the old ones stay. `deadpool status` says when every
    version is protected. The job does not undo what was asked for here, unless it is asked for auto."""
    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.config.checks import AUTO
    from deadpool.errors import ConfigError
    from deadpool.protocol.coding import Scheme

    if scheme is None:
        raise ConfigError("no scheme was chosen: give --scheme with copies=N, rs(K,M) or auto, as in --scheme copies=2")
    if scheme != AUTO:
        try:
            Scheme.parse(scheme)
        except ValueError as error:
            what_now = "give copies=N, rs(K,M) or auto, as in --scheme copies=2"
            raise ConfigError(f"scheme={scheme!r} cannot be used, {error}: {what_now}") from None
    body = ask(find_run_dir(run), "protect", scheme=scheme)
    print(json_format.dumps(body) if json else _in_words(body["scheme"], body["before"]))


def _in_words(scheme: str, before: str) -> str:
    """What was asked for; a plan carries it out, perhaps after a recovery that is under way."""
    if scheme == before:
        return f"nothing changes: snapshots are to be protected by {scheme} already"
    when = "from the next plan on; `deadpool status` says when every version is"
    return f"snapshots will be protected by {scheme} instead of {before} {when}"


_ASK_S = 0.2


@for_a_job()
def audit(
    run: Path | None,
    wait: Annotated[bool, typer.Option(help="wait for the verdict")] = True,
    wait_s: WaitS = 600.0,
    json: Json = False,
) -> None:
    """Play a recovery without a loss, for one rank of each kind in turn: another process takes the rank, all ranks
    compute the last steps again, and digests of their state are compared. In a last one all ranks are cut off inside of
    a step. Exit code 1: the script is not exact, or there was no verdict."""
    from deadpool.cli.job_client import ask, find_run_dir

    check_at_least(0, wait_s=wait_s)
    folder = find_run_dir(run)
    before = len(ask(folder, "status")["audit"]["verdicts"])
    ask(folder, "audit")
    if not wait:
        print("{}" if json else "asked for: deadpool status will have the verdict")
        return
    deadline = time.monotonic() + wait_s
    while (state := ask(folder, "status")["audit"])["under_way"]:
        if time.monotonic() > deadline:
            print(f"no verdict within {wait_s:g} s, the audit goes on: deadpool status will have it", file=sys.stderr)
            raise typer.Exit(1)
        time.sleep(_ASK_S)
    verdicts = state["verdicts"][before:]
    print(json_format.dumps(verdicts) if json else "\n".join(map(_line, verdicts)))
    is_whole = bool(verdicts) and verdicts[-1]["inside"]  # which comes last
    if not is_whole:
        print("not every recovery could be played: the event audit_given_up says why", file=sys.stderr)
    if not is_whole or not all(each["exact"] for each in verdicts):
        raise typer.Exit(1)


def _line(verdict: dict[str, Any]) -> str:
    place = "inside of" if verdict["inside"] else "at"
    where = f"rank {verdict['replaced']} was replaced {place} step {verdict['step']}"
    if verdict["exact"]:
        again = "were back where it begins" if verdict["inside"] else "computed the same again"
        undecided = "".join(f"; {each} differs, and alone decides nothing" for each in verdict.get("undecided", ()))
        return f"exact: {where}, and {verdict['ranks']} ranks {again}{undecided}"
    return f"NOT EXACT: {where}, and {verdict['part']} of rank {verdict['rank']} differs ({verdict['rule']})"
