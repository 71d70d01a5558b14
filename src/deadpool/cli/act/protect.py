"""`deadpool job protect`: change how the snapshots of a running job are protected."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.run_argument import for_a_job
from deadpool.cli.shared_options import Json


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
    from deadpool.config.job_config import AUTO
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
