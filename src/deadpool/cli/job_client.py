"""How commands reach a running job: its run folder names the coordinator and holds the secret."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

from deadpool.control.coordinator.announcement import ask
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError, DeadPoolError
from deadpool.events.event import causes, read_events
from deadpool.events.story import EVENTS, unwritten

__all__ = ["RUNS", "ask", "check_cause", "events_of", "find_run_dir", "say_unwritten", "unwritten_of"]

RUNS = Path("deadpool-runs")
_PATIENCE_S = 3.0


def _refuse_not_begun(folder: Path) -> None:
    """A job that a scheduler has not started yet has written nothing: what it waits for is said instead."""
    if (folder / "job.json").exists():
        return
    from deadpool.clusters.slurm.waiting import why_not_begun

    if (reason := why_not_begun(folder)) is not None:
        raise ConfigError(reason)


def find_run_dir(given: Path | None) -> RunDir:
    """The folder that was given, or the newest one in ./deadpool-runs."""
    if given is not None:
        if not given.is_dir():
            state = "is a file" if given.exists() else "is not there"
            raise ConfigError(f"run folder {given} {state}: give the run folder of a job, as `deadpool run` printed it")
        _refuse_not_begun(given)
        return RunDir(given)
    runs = [(_written_at(path / "job.json"), path) for path in RUNS.glob("*")]
    begun = [each for each in runs if each[0] is not None]
    if not begun:
        raise ConfigError(f"no job was found in ./{RUNS}: name the run folder of the job, as `deadpool run` printed it")
    return RunDir(max(begun)[1])


def _written_at(job: Path) -> int | None:
    """Returns when a coordinator last took up this job. Names do not tell: --run-dir may have given any. It returns
    None if there is no folder that this user can look at."""
    with contextlib.suppress(OSError):
        return job.stat().st_mtime_ns
    return None


def unwritten_of(folder: RunDir, *, only: str | None = EVENTS) -> list[str]:
    """What the folder of a job that runs lacks, in sentences. Nothing where there is nobody to ask."""
    if folder.has_ended():
        return []
    with contextlib.suppress(DeadPoolError, OSError):
        place = folder.coordinator()
        socket.create_connection((place.host, place.port), _PATIENCE_S).close()  # where nobody listens, nobody waits
        return unwritten(ask(folder, "status"), only=only)
    return []


def say_unwritten(sentences: list[str]) -> None:
    """Beside the output, which may be JSON."""
    for sentence in sentences:
        print(f"[deadpool] {sentence}", file=sys.stderr)


def events_of(folder: RunDir) -> list[dict[str, Any]]:
    """What a job has told, as far as it is written; what is not is said. ConfigError where nothing can be said about a
    job: no log, or a file that is none."""
    try:
        folder.events.stat()
        records = [record for record in read_events(folder.events) if "t" in record]
    except FileNotFoundError:
        raise ConfigError(f"{folder.path} has no events.jsonl: give the run folder of a job that has begun") from None
    except OSError as error:
        raise ConfigError(
            f"{folder.events} cannot be read: {error.strerror}. Give the run folder of a job that this user can read"
        ) from None
    lacks = unwritten_of(folder)
    if not records:
        why = "; ".join(lacks) or "it is empty or damaged. Give the run folder of another job"
        raise ConfigError(f"{folder.events} holds no event: {why}")
    say_unwritten(lacks)
    return records


def check_cause(cause: str | None, records: list[dict[str, Any]], folder: RunDir) -> None:
    """Raises ConfigError for one that the job has not. None: all of them are wanted."""
    known = causes(records)
    if cause is not None and cause not in known:
        raise ConfigError(f"cause={cause!r} is none of {folder.path}: give one of {', '.join(known) or 'another job'}")
