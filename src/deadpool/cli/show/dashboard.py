"""`deadpool show dashboard`: a live page of a job, for a browser."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deadpool.cli.run_argument import for_a_job

LOOPBACK = "127.0.0.1"


@for_a_job()
def dashboard(
    run: Path | None,
    port: Annotated[int, typer.Option(help="port to listen on; 0: any free one")] = 0,
    host: Annotated[
        str, typer.Option(help="address to listen on; another than loopback shows it to others")
    ] = LOOPBACK,
    token: Annotated[bool, typer.Option("--token", help="print the token that the page asks for, and exit")] = False,
) -> None:
    """Serve a live page of a job, or of one that has ended. It only reads, and asks for a token of this job."""
    from deadpool.cli.job_client import find_run_dir
    from deadpool.views.dashboard.words import access_token
    from deadpool.wire.credentials import read_secret

    folder = find_run_dir(run)
    known = access_token(read_secret(folder.secret_file))
    if token:
        print(known)
        return
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(folder, host, port, known))


async def _serve(folder: Any, host: str, port: int, token: str) -> None:
    from deadpool.control.coordinator.announcement import ask_status
    from deadpool.views.dashboard.feed import Feed
    from deadpool.views.dashboard.run_files import RunFiles
    from deadpool.views.dashboard.server import DashboardServer

    server = DashboardServer(Feed(RunFiles(folder.path), lambda: ask_status(folder)), token)
    stop = asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    address = await server.start(host, port)
    for line in _greeting(address, folder.path, token, shown=sys.stdout.isatty()):
        print(line, flush=True)
    try:
        await stop.wait()
    finally:
        await server.close()


def _greeting(address: str, folder: Path, token: str, *, shown: bool) -> list[str]:
    """What goes to a terminal is seen by its user; other output may end in a log, which the token must not."""
    ways = f"deadpool show dashboard {shlex.quote(str(folder))} --token"
    return [f"[deadpool] live page: {address}", f"[deadpool] its token: {token if shown else f'run `{ways}`'}"]
