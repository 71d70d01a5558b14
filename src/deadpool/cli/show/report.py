"""`deadpool show report`: a job that has ended, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.given_path import check_output
from deadpool.cli.run_argument import for_a_job


@for_a_job()
def report(
    run: Path | None,
    out: Annotated[Path, typer.Option(help="the HTML file to write")] = Path("report.html"),
) -> None:
    """Write one self-contained page about a job: goodput, every fault with its cost and cause, curves, settings."""
    from deadpool.cli.job_client import events_of, find_run_dir, unwritten_of
    from deadpool.host.owner_only import open_private
    from deadpool.views.dashboard.report import write_report
    from deadpool.views.dashboard.run_files import RunFiles

    check_output(out, "out")
    folder = find_run_dir(run)
    events_of(folder)  # a page about nothing would look like a job in which nothing happened
    text = write_report(RunFiles(folder.path), unwritten_of(folder))
    out.parent.mkdir(parents=True, exist_ok=True)
    with open_private(out, "w") as file:  # like the run folder: logs and settings are in it
        file.write(text)
    print(f"written to {out}")
