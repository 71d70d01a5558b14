"""A new job takes a run folder: it gets a log of its own, whatever way it is started in.

Two jobs in one log would look like one, whose causes have the same names and whose time between them counted as
trained. Nobody else puts a job's files away.
"""

from __future__ import annotations

from deadpool.control.console import print_line
from deadpool.control.launch.folder_lock import lock_folder
from deadpool.control.launch.run_dir import RunDir
from deadpool.host.owner_only import open_private
from deadpool.host.process_lock import ProcessLock

_MARK = "run"


def take_folder(run_dir: RunDir) -> ProcessLock:
    """Takes the folder for a launcher whose job begins now, and returns its lock. ConfigError: another job uses it. The
    secret is a new one: nothing that is left of the earlier job is let in."""
    lock = lock_folder(run_dir.path, "run_dir")
    try:
        put_earlier_job_away(run_dir)
        run_dir.make_secret()
    except BaseException:
        lock.close()
        raise
    return lock


def put_earlier_job_away(run_dir: RunDir) -> None:
    """Where it is known that a new job begins."""
    if (earlier := run_dir.put_earlier_job_away()) is not None:
        print_line(
            f"[deadpool] this folder is that of an earlier job, whose log is in {earlier.path} now. This job "
            "begins anew, or from the earlier one's newest checkpoint with --durable and --resume auto"
        )


def put_ended_job_away(run_dir: RunDir) -> None:
    """Puts an ended job away for a coordinator that somebody starts by hand: a job that has not ended is one that it
    takes over.
    """
    if run_dir.has_ended():
        put_earlier_job_away(run_dir)


def put_other_run_away(run_dir: RunDir, run: str) -> None:
    """For a node's own folder, which a process enters that may be started several times in one run of a job."""
    mark = run_dir.path / _MARK
    if mark.exists() and mark.read_text(encoding="utf-8") == run:
        return
    put_earlier_job_away(run_dir)
    with open_private(mark, "w") as file:
        file.write(run)
