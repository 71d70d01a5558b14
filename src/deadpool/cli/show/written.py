"""What a job has written: `deadpool show story` prints each recovery as a timeline, and what audits and replicas have
found, `journal` what job.log has written, every step once, and `logs` the log of a rank, also around a fault."""

from __future__ import annotations

import json
import json as json_format
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.arguments import Json, check_at_least, for_a_job

if TYPE_CHECKING:
    from deadpool.events.silent_errors import SilentErrorCase
    from deadpool.events.story import Recovery
    from deadpool.journal.jsonl import Line

REPEATED = ("capture_missed",)
"""Events that come again and again in the steps after a recovery: they are counted."""

_POLL_S = 0.5


@for_a_job(formerly="cause")
def story(
    run: Path | None,
    cause: Annotated[str | None, typer.Option(help="only this one, as in fault-1 (default: all of them)")] = None,
    json: Json = False,
) -> None:
    """Show each recovery as a timeline with its phases in milliseconds, and each audit of a step and each silent error
    in a paragraph. Also after the job has ended."""
    from deadpool.cli.job_client import check_cause, events_of, find_run_dir
    from deadpool.events.silent_errors import read_silent_errors
    from deadpool.events.story import recoveries

    folder = find_run_dir(run)
    records = events_of(folder)
    check_cause(cause, records, folder)
    found = [r for r in recoveries(records) if cause in (None, r.cause)]
    silent = read_silent_errors(records)
    told = [each for each in silent.findings if cause is None or cause in each.causes]
    if json:
        print(json_format.dumps([_as_json(recovery, told) for recovery in found], indent=2))
        return
    if not found:
        print("no completed recovery" + (f" with cause {cause}" if cause else ""))
    for recovery in found:
        print_recovery(recovery)
    for line in _audit_lines(told, silent.alike_count, only=cause is not None):
        print(line)


def _audit_lines(told: list[SilentErrorCase], alike_count: int, *, only: bool) -> list[str]:
    """Tells only the newest of the audits that found nothing, where nobody has asked for one."""
    from deadpool.events.silent_errors import CaseVerdict, paragraph

    alike = [each for each in told if each.verdict is CaseVerdict.ALIKE]
    shown = [each for each in told if only or each.verdict is not CaseVerdict.ALIKE or each is alike[-1]]
    lines = [paragraph(each) for each in shown]
    if not only and alike_count > 1:
        lines.append(f"{alike_count - 1:,} audits before have found all ranks alike.")
    return lines


def _as_json(recovery: Recovery, told: list[SilentErrorCase]) -> dict[str, object]:
    return {
        "cause": recovery.cause,
        "reason": recovery.fault["reason"],
        "resume_step": recovery.resume_step,
        "lost_steps": recovery.lost_steps,
        "phases_s": recovery.phases_s,
        "first_step_s": recovery.first_step_s,
        "silent_errors": [each.facts() for each in told if recovery.cause in each.causes],
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


@for_a_job(formerly="folder")
def journal(
    run: Path | None,
    folder: Annotated[
        list[Path] | None,
        typer.Option(help="a folder of journals instead of RUN (repeatable), where nodes do not share one"),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="only this rank")] = None,
    key: Annotated[list[str] | None, typer.Option(help="only these values (repeatable); a/b if nested")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on with new entries")] = False,
) -> None:
    """Print what job.log has written, every step of every rank once: a table, or lines of JSON where it is piped.
    Exits 1 where there is nothing to print."""
    from deadpool.journal.jsonl import JournalReader, newest_runs

    folders = _folders(folder, run)
    book = JournalReader(folders)
    shown = _print((line for line in newest_runs(book.read()) if rank in (None, line.rank)), key or [], titled=True)
    if not shown and not follow:
        of = "" if rank is None else f" of rank {rank}"
        print(f"there are no values{of} in {', '.join(map(str, folders))}: job.log writes them there", file=sys.stderr)
        raise typer.Exit(1)
    while follow:
        try:
            time.sleep(_POLL_S)
        except KeyboardInterrupt:
            return
        lines = sorted(book.read(), key=lambda line: (line.step, line.rank))
        _print((line for line in lines if rank in (None, line.rank)), key or [], titled=False)


def _folders(given: list[Path] | None, run: Path | None) -> list[Path]:
    from deadpool.cli.job_client import find_run_dir
    from deadpool.errors import ConfigError

    if not given:
        return [find_run_dir(run).journal]
    if run is not None:
        raise ConfigError(f"both RUN ({run}) and --folder are given: name a job, or folders of journals")
    missing = [str(folder) for folder in given if not folder.is_dir()]
    if missing:
        raise ConfigError(f"folder={', '.join(missing)} does not exist: give folders of journals, or of jobs")
    return [folder / "journal" if (folder / "journal").is_dir() else folder for folder in given]


def _print(lines: Iterable[Line], keys: list[str], *, titled: bool) -> int:
    """Returns how many lines were printed."""
    found = [(line, _chosen(line.values, keys)) for line in lines]
    shown = [(line, values) for line, values in found if values or not keys]
    if not sys.stdout.isatty():
        for line, values in shown:
            print(json.dumps({"step": line.step, "rank": line.rank, "time": line.time, "values": values}), flush=True)
    elif titled and shown:
        _print_table(shown)
    else:
        for line, values in shown:
            print(f"{line.step:>8} {line.rank:>5}  " + "  ".join(f"{key}={_cell(v)}" for key, v in values.items()))
    return len(shown)


def _print_table(rows: list[tuple[Line, dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = list(dict.fromkeys(key for _, values in rows for key in values))
    table = Table("step", "rank", *columns)
    for line, values in rows:
        table.add_row(str(line.step), str(line.rank), *(_cell(values[key]) if key in values else "" for key in columns))
    Console().print(table)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def _chosen(values: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    if not keys:
        return values
    found = {key: _find(values, key) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def _find(values: Any, key: str) -> Any:
    """A key is looked up as it is, else as a path into nested dicts."""
    if isinstance(values, dict) and key in values:
        return values[key]
    outer, _, inner = key.partition("/")
    return _find(values[outer], inner) if inner and isinstance(values, dict) and outer in values else None


@for_a_job()
def logs(
    run: Path | None,
    rank: Annotated[int | None, typer.Option(help="the rank, whichever process held it")] = None,
    trainer: Annotated[str | None, typer.Option(help="a trainer by its name, as in n1.0, instead of a rank")] = None,
    around: Annotated[
        str | None, typer.Option(help="a fault or drain, as in fault-2 (default: the newest lines)")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="lines before the fault, and after it")] = 20,
    folder: Annotated[
        Path | None, typer.Option("--logs", help="folder of an agent's logs (default: the one in the run folder)")
    ] = None,
) -> None:
    """Print what a rank has written. Around a fault that is the log of the process that was lost, or stopped there, and
    of the one that took its place. Also after the job has ended."""
    from deadpool.cli.job_client import events_of, find_run_dir, say_unwritten, unwritten_of
    from deadpool.control.launch.log_search import excerpt, holders
    from deadpool.errors import ConfigError
    from deadpool.events.story import LOG_LINES

    if (rank is None) == (trainer is None):
        raise ConfigError("give either --rank or --trainer: a log is that of one of them")
    check_at_least(1, lines=lines)
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"logs={str(folder)!r} is not a folder: give that of an agent's logs, on the agent's machine")
    job = find_run_dir(run)
    names = [trainer] if trainer is not None else holders(events_of(job), rank or 0, around)
    say_unwritten(unwritten_of(job, only=LOG_LINES))
    place, found = folder or job.logs, 0
    for name in names:
        part = excerpt(place, name, around, lines=lines)
        if part.path is None:
            print(f"== {name}: {_where_else(name, place)}")
            continue
        found += 1
        print(f"== {part.path}" + ("" if part.at_mark or around is None else f" (it has no mark of {around}: its end)"))
        for line in part.lines:
            print(line)
    if not found:
        raise typer.Exit(1)


def _where_else(name: str, place: Path) -> str:
    """Names of trainers are those of their nodes and a number: others are of none."""
    node, _, number = name.rpartition(".")
    if not node or not number.isdigit():
        return f"no log in {place} is of a trainer with this name: give one as `deadpool status` does, as in n1.0"
    return f"not in {place}. It ran on node {node}: look there, in the folder of its --logs"
