"""Slurm's own commands, as an ordinary user calls them. Each has a deadline: a controller may be away for a while."""

from __future__ import annotations

import ctypes
import ctypes.util
import datetime
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deadpool.errors import DeadPoolError

_COMMAND_S = 20.0
_LIVE = {"RUNNING", "SUSPENDED"}
_FLAGS = "*~#!%$@^-+"
"""What sinfo adds to a node's state: not responding, powering down, and so on."""


class SlurmError(DeadPoolError):
    """A command of Slurm failed, or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    job_id: str
    state: str
    node: str  # the names of its nodes, in Slurm's short form
    ends_at: float | None  # seconds since the epoch; None: not known, or never
    name: str = ""

    @property
    def is_running(self) -> bool:
        return self.state in _LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSize:
    """How many nodes a partition has, in which states."""

    name: str
    is_default: bool
    in_use: int
    idle: int
    other: int  # down, drained, failed
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    nodes: int
    partition: str  # or several, separated by commas
    reason: str  # Slurm's word; empty: the scheduler has not looked at the job yet


def run(*command: str, given: str | None = None) -> str:
    """What the command prints. Raises SlurmError with what it complains of."""
    try:
        done = subprocess.run(
            command,
            input=given if given is not None else "",
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            env=_variables(),
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} did not answer within {_COMMAND_S:g} s") from None
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be run here: {error.strerror or error}") from error
    if done.returncode != 0:
        raise SlurmError((done.stderr or done.stdout).strip() or f"{command[0]} ended with {done.returncode}")
    return done.stdout


def _variables() -> dict[str, str]:
    """Inside of a job the environment describes that job, and sbatch would take it for wishes. A user's own wishes for
    other commands (SQUEUE_FORMAT) would change what they print."""
    unwanted = ("SLURM_", "SQUEUE_", "SINFO_", "SCANCEL_")
    kept = {name: value for name, value in os.environ.items() if name == "SLURM_CONF" or not name.startswith(unwanted)}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def host_names(nodelist: str) -> list[str]:
    """From Slurm's short form, as in n[1-3,07],gpu-a[1-2]."""
    return run("scontrol", "show", "hostnames", nodelist).split() if nodelist else []


def node_address(name: str) -> str:
    """Where Slurm itself reaches a node: its name, unless the administrator gave an address."""
    for word in run("scontrol", "show", "node", name, "--oneliner").split():
        if word.startswith("NodeAddr="):
            return word.removeprefix("NodeAddr=")
    return name


def node_states(names: Iterable[str]) -> dict[str, str]:
    """States in lower case, without flags: allocated, draining, failing, down. A node may be in several partitions."""
    return {name: state.rstrip(_FLAGS).lower() for name, state in _per_node(names, "%T")}


def node_features(names: Iterable[str]) -> dict[str, list[str]]:
    return {name: text.split(",") for name, text in _per_node(names, "%f")}


def _per_node(names: Iterable[str], what: str) -> list[tuple[str, str]]:
    listed = ",".join(sorted(set(names)))
    if not listed:
        return []
    lines = run("sinfo", "--noheader", "--Node", f"--nodes={listed}", f"--format=%N|{what}").splitlines()
    return [(name, value) for name, _, value in (line.strip().partition("|") for line in lines) if name]


def topology() -> str:
    """Empty where the site has no topology plugin."""
    try:
        return run("scontrol", "show", "topology")
    except SlurmError:
        return ""


def job_record(job_id: str) -> dict[str, str]:
    """All that Slurm tells of a job, by Slurm's own names."""
    words = run("scontrol", "show", "job", job_id, "--oneliner").split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def is_preempted(job_id: str) -> bool:
    """Slurm has announced that it takes all nodes of the job away."""
    return job_record(job_id).get("PreemptTime", "None") not in ("None", "N/A", "")


def job(job_id: str) -> JobFacts | None:
    """None: Slurm does not know it any more."""
    try:
        found = _jobs(f"--jobs={job_id}", "--states=all")
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return None
        raise
    return found[0] if found else None


def unfinished_job(job_id: str) -> JobFacts | None:
    """The job if it waits, runs or is just ending; None: it is over."""
    try:
        found = _jobs(f"--jobs={job_id}")
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return None
        raise
    return found[0] if found else None


def own_jobs(name: str) -> list[JobFacts]:
    """This user's jobs of that name which wait or run."""
    return _jobs(f"--user={os.getuid()}", f"--name={name}")


def _jobs(*selection: str) -> list[JobFacts]:
    lines = run("squeue", "--noheader", "--format=%i|%T|%N|%e|%j", *selection).splitlines()
    found = [line.strip().split("|", 4) for line in lines if line.strip()]
    return [
        JobFacts(job_id=job_id, state=state, node=node, ends_at=_time(ends), name=name)
        for job_id, state, node, ends, name in found
    ]


def _time(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None  # N/A, Unknown


def pending_job(job_id: str) -> PendingJob | None:
    """None: it does not wait. It has started, or has ended."""
    try:
        line = run("squeue", "--noheader", f"--jobs={job_id}", "--format=%T|%D|%P|%r", "--states=all").strip()
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return None
        raise
    state, _, rest = line.partition("|")
    if state != "PENDING":
        return None
    nodes, partition, reason = rest.split("|", 2)
    return PendingJob(nodes=int(nodes), partition=partition, reason="" if reason == "None" else reason)


def partition_sizes() -> list[PartitionSize]:
    """Returns the sizes of all partitions, also of hidden ones."""
    lines = run("sinfo", "--all", "--noheader", "--summarize", "--format=%R|%P|%F").splitlines()
    return [_partition_size(*line.strip().split("|", 2)) for line in lines if line.strip()]


def _partition_size(name: str, marked: str, counts: str) -> PartitionSize:
    """Reads a size from words such as gpu, gpu*, 3/1/0/4: a star marks the default."""
    in_use, idle, other, total = map(int, counts.split("/"))
    return PartitionSize(name=name, is_default=marked.endswith("*"), in_use=in_use, idle=idle, other=other, total=total)


def submit(options: Sequence[str], script: str) -> str:
    """The new job's id."""
    return run("sbatch", "--parsable", *options, given=script).strip().partition(";")[0]


def cancel(job_ids: Sequence[str]) -> None:
    if job_ids:
        run("scancel", *job_ids)


def requeue(job_id: str) -> None:
    run("scontrol", "requeue", job_id)


def end_job(job_id: str, exit_code: int) -> str:
    """Ends a job whose batch script is gone. Returns how.

    Slurm's library lets the owner say how the job ended: COMPLETED or FAILED. scancel can only say CANCELLED.
    """
    library = _library()
    if library is not None and library.slurm_complete_job(int(job_id), exit_code << 8) == 0:
        return "COMPLETED" if exit_code == 0 else "FAILED"
    run("scancel", job_id)
    return "CANCELLED"


def _library() -> ctypes.CDLL | None:
    """Debian keeps it beside the plugins, others where the linker finds it."""
    beside_plugins = sorted(str(path) for path in Path("/usr/lib").glob("*/slurm*/libslurmfull.so"))
    for name in filter(None, [ctypes.util.find_library("slurm"), *beside_plugins]):
        try:
            library = ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
            library.slurm_complete_job.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
            if hasattr(library, "slurm_init"):  # since 21.08
                library.slurm_init(None)
        except (OSError, AttributeError):
            continue
        return library
    return None
