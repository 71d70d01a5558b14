"""`deadpool show dashboard`, `report`, `picture` and `trace`: a job as a live page, as files to keep, as spans."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deadpool.cli.arguments import check_output, for_a_job, write_output

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


@for_a_job()
def picture(
    run: Path | None,
    out: Annotated[Path, typer.Option(help="the SVG file to write")] = Path("recovery.svg"),
    cause: Annotated[str | None, typer.Option(help="which one, as in fault-1 (default: the last one)")] = None,
) -> None:
    """Draw step times around a fault, and its recovery phase by phase. Also after the job has ended."""
    from deadpool.cli.job_client import events_of, find_run_dir
    from deadpool.views.picture.page import draw_page

    check_output(out, "out")
    drawn = draw_page(events_of(find_run_dir(run)), cause)
    write_output(out, drawn)
    print(f"drawn into {out}")


@for_a_job()
def report(
    run: Path | None,
    out: Annotated[Path, typer.Option(help="the HTML file to write")] = Path("report.html"),
) -> None:
    """Write one self-contained page about a job: goodput, every fault with its cost and cause, curves, settings."""
    from deadpool.cli.job_client import events_of, find_run_dir, unwritten_of
    from deadpool.host.private_files import open_private
    from deadpool.views.dashboard.run_files import RunFiles
    from deadpool.views.dashboard.server import write_report

    check_output(out, "out")
    folder = find_run_dir(run)
    events_of(folder)  # a page about nothing would look like a job in which nothing happened
    text = write_report(RunFiles(folder.path), unwritten_of(folder))
    out.parent.mkdir(parents=True, exist_ok=True)
    with open_private(out, "w") as file:  # like the run folder: logs and settings are in it
        file.write(text)
    print(f"written to {out}")


@for_a_job()
def trace(
    run: Path | None,
    otlp: Annotated[
        str | None,
        typer.Option(
            help="where OTLP over HTTP is received, as in http://HOST:4318 (default: OTEL_EXPORTER_OTLP_ENDPOINT)"
        ),
    ] = None,
    cause: Annotated[str | None, typer.Option(help="only this one, as in fault-1 (default: all of them)")] = None,
) -> None:
    """Send every completed recovery of a job, running or ended, to a tracing system: one trace each, with its phases
    and each rank's part. Sent twice, the spans have the same ids."""
    from deadpool.cli.job_client import check_cause, events_of, find_run_dir
    from deadpool.events.story import recoveries
    from deadpool.views.metrics.spans import export, spans

    folder = find_run_dir(run)
    records = events_of(folder)
    check_cause(cause, records, folder)
    found = [recovery for recovery in recoveries(records) if cause in (None, recovery.cause)]
    if not found:
        print("no completed recovery" + (f" with cause {cause}" if cause else ""))
        return
    name = f"{folder.path.resolve().name} {records[0]['t']}"
    parts = [span for recovery in found for span in spans(recovery, name)]
    export(parts, otlp)
    print(f"sent {len(parts)} spans of {len(found)} recoveries")
