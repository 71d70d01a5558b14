"""`deadpool show picture`: draw a recovery as an SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deadpool.cli.given_path import check_output, write_output
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
