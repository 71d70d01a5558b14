"""`deadpool show trace`: send recoveries as spans of OpenTelemetry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.run_argument import for_a_job


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
