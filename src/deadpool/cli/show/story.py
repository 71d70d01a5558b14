"""`deadpool show story`: print each recovery as a timeline."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deadpool.cli.given import Json
from deadpool.cli.run_argument import for_a_job

if TYPE_CHECKING:
    from deadpool.events.story import Recovery


REPEATED = ("capture_missed",)
"""Events that come again and again in the steps after a recovery: they are counted."""


@for_a_job(formerly="cause")
def story(
    run: Path | None,
    cause: Annotated[str | None, typer.Option(help="only this one, as in fault-1 (default: all of them)")] = None,
    json: Json = False,
) -> None:
    """Show each recovery as a timeline with its phases in milliseconds. Also after the job has ended."""
    from deadpool.cli.job_client import check_cause, events_of, find_run_dir
    from deadpool.events.story import recoveries

    folder = find_run_dir(run)
    records = events_of(folder)
    check_cause(cause, records, folder)
    found = [r for r in recoveries(records) if cause in (None, r.cause)]
    if json:
        print(json_format.dumps([_as_json(recovery) for recovery in found], indent=2))
    elif not found:
        print("no completed recovery" + (f" with cause {cause}" if cause else ""))
    else:
        for recovery in found:
            print_recovery(recovery)


def _as_json(recovery: Recovery) -> dict[str, object]:
    return {
        "cause": recovery.cause,
        "reason": recovery.fault["reason"],
        "resume_step": recovery.resume_step,
        "lost_steps": recovery.lost_steps,
        "phases_s": recovery.phases_s,
        "first_step_s": recovery.first_step_s,
        "records": list(recovery.records),
    }


def print_recovery(recovery: Recovery) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(f"[bold]{recovery.cause}[/bold]: {recovery.fault['reason']}, ranks {recovery.fault['ranks']}")
    offset, total = 0.0, sum(recovery.phases_s.values()) or 1.0
    for name, seconds in recovery.phases_s.items():
        start, width = round(40 * offset / total), max(1, round(40 * seconds / total))
        console.print(f"  {name:8} {1e3 * seconds:8.1f} ms  {' ' * start}{'█' * width}")
        offset += seconds
    console.print(f"  resumed at step {recovery.resume_step}, {recovery.lost_steps} completed steps redone")
    for record in recovery.records:
        if record["what"] not in REPEATED:
            console.print(_line(record, recovery.began))
    for what in REPEATED:
        if count := sum(record["what"] == what for record in recovery.records):
            console.print(f"  and {count} times {what} until the next recovery, see events.jsonl")


def _line(record: dict[str, object], began: float) -> str:
    shown = {k: v for k, v in record.items() if k not in ("t", "what", "cause", "generation") and v is not None}
    detail = " ".join(f"{name}={value}" for name, value in shown.items())
    return f"  [dim]+{1e3 * (float(str(record['t'])) - began):8.1f} ms[/dim] {record['what']:14} [dim]{detail}[/dim]"
