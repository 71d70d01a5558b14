"""A recovery or a whole job as files: a picture, a page, spans.

`picture`: `deadpool show picture`: draw a recovery as an SVG.

`report`: `deadpool show report`: a job that has ended, as one HTML file.

`trace`: `deadpool show trace`: send recoveries as spans of OpenTelemetry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.given import check_output, write_output
from deadpool.cli.run_argument import for_a_job


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
