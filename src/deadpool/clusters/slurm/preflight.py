"""What is looked at before a job is submitted: what the login node shares with the nodes of the job, and their number.

Shared are the file systems and the installation. Memory, GPUs and limits of a login node are others than theirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.client import PartitionSize, SlurmError
from deadpool.clusters.slurm.run_folder import submitted_job
from deadpool.doctor.examination import preflight
from deadpool.doctor.finding import Kind
from deadpool.errors import ConfigError

_SHARED = ("versions", "run folder")
_ELSEWHERE = ("--clusters", "-M", "--reservation", "--nodes", "-N")
"""With these options other nodes count than those of a partition here, or another number of them."""


def check_before_submission(run_dir: Path) -> None:
    """Raises ConfigError with all that would stop the job."""
    report = preflight(run_dir=run_dir)
    bad = [each for each in report.findings if each.kind is Kind.FINDING and each.check in _SHARED]
    if bad:
        found = "; ".join(f"{each.what} ({each.do})" for each in bad)
        raise ConfigError(f"the job was not submitted: {found}. --no-preflight submits it all the same")


def check_node_count(nodes: int, options: Sequence[str]) -> None:
    """Raises ConfigError for more nodes than the partition has, whatever their state: such a job waits for ever.

    Where Slurm does not tell, nothing is certain."""
    try:
        sizes = client.partition_sizes()
    except SlurmError:
        return
    if (largest := largest_partition(sizes, options, os.environ.get("SBATCH_PARTITION", ""))) is None:
        return
    if nodes > largest.total:
        raise ConfigError(
            f"the job was not submitted: it asks for {nodes} nodes, spares included, and partition {largest.name} has "
            f"{largest.total}. Ask for fewer or name another --partition; --no-preflight submits it all the same"
        )


def largest_partition(sizes: Iterable[PartitionSize], options: Sequence[str], variable: str) -> PartitionSize | None:
    """Returns the largest of the partitions that the job may run in, or None where that cannot be said."""
    if any(word.startswith(_ELSEWHERE) or _is_shortened(word) for word in options) or os.environ.get("SBATCH_CLUSTERS"):
        return None
    names = _named(options) or variable
    asked = [each for each in sizes if (each.name in names.split(",") if names else each.is_default)]
    if names and len(asked) < len(names.split(",")):
        return None
    return max(asked, key=lambda each: each.total, default=None)


def _is_shortened(word: str) -> bool:
    """sbatch takes the beginning of an option for it, as in --part=gpu."""
    name = word.partition("=")[0]
    known = (option for option in ("--partition", *_ELSEWHERE) if option.startswith("--"))
    return len(name) > len("--p") and any(option.startswith(name) and option != name for option in known)


def _named(options: Sequence[str]) -> str:
    """The last one counts, as for sbatch."""
    found = ""
    for word, following in zip(options, [*options, ""][1:], strict=True):
        if word in ("--partition", "-p"):
            found = following
        elif word.startswith("--partition="):
            found = word.removeprefix("--partition=")
        elif word.startswith("-p"):
            found = word.removeprefix("-p")
    return found


def check_folder_is_free(run_dir: Path) -> None:
    """Another job that was submitted with this run folder would lose its secret and its events to this one."""
    job_id = submitted_job(run_dir)
    if job_id is None or (found := client.unfinished_job(job_id)) is None:
        return
    raise ConfigError(
        f"run_dir={str(run_dir)!r} cannot be used: job {job_id} of Slurm ({found.state}) was submitted with it; wait "
        f"for its end, end it with `scancel {job_id}`, or give another one"
    )
