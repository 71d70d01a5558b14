"""What is asked of Slurm for a job, and for the one-node jobs that bring new spares: options of sbatch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NAMES = (
    "time", "partition", "account", "qos", "reservation", "constraint", "gres", "gpus_per_node", "cpus_per_task", "mem",
    "exclude", "exclusive",
)  # fmt: skip
"""Options of sbatch that `deadpool slurm submit` has too. Others are given with --sbatch."""

_OF_RECORD = {
    "Partition": "partition",
    "Account": "account",
    "QOS": "qos",
    "Reservation": "reservation",
    "Features": "constraint",
    "TresPerNode": "gres",
    "CPUs/Task": "cpus-per-task",
}


def option_words(given: Mapping[str, Any], more: Sequence[str]) -> list[str]:
    """Writes options as words of a command line, without those that are None because nobody asked for them."""
    words = []
    for name in NAMES:
        value = given.get(name)
        if value is True:
            words.append(f"--{name}")
        elif value not in (None, False):
            words.append(f"--{name.replace('_', '-')}={value}")
    return [*words, *more]


def words_of_record(record: Mapping[str, str]) -> list[str]:
    """Returns the options of a job whose batch script is the user's own, from what `scontrol show job` tells of it."""
    words = []
    for field, option in _OF_RECORD.items():
        value = record.get(field, "")
        if value and value not in ("(null)", "N/A"):
            if option == "gres":  # gres:gpu:2, since 23.11 gres/gpu:2
                value = value.replace("gres:", "").replace("gres/", "")
            words.append(f"--{option}={value}")
    return words


def words_for_spare(words: Sequence[str], *, exclude: Iterable[str], seconds_left: float | None) -> list[str]:
    """The same for one node, for the time that the job has left, and not on nodes that failed."""
    excluded = [word.partition("=")[2] for word in words if word.startswith("--exclude=")]
    excluded += sorted(exclude)
    kept = [word for word in words if not word.startswith("--exclude=")]
    if seconds_left is not None:
        kept = [word for word in kept if not word.startswith("--time=")]
        kept.append(f"--time={max(1, math.ceil(seconds_left / 60))}")
    return [*kept, *([f"--exclude={','.join(excluded)}"] if excluded else [])]
