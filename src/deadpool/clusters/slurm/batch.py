"""The batch script of a job, what is looked at before it is submitted, and what runs in it.

`JobScript` is the text of the batch scripts: that of a job, and that of a one-node job which brings a spare.
`BatchHost` is what the batch script runs: srun over all nodes, and the exit code of the job. Nodes that died may keep
srun waiting until Slurm calls them DOWN; the result in the run folder is what counts.

Before a job is submitted, its number of nodes is looked at, and what the login node shares with them: the file systems
and the installation. Memory, GPUs and limits of a login node are others than theirs.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.client import PartitionSize, SlurmError
from deadpool.clusters.slurm.run_folder import RunFolder, submitted_job
from deadpool.config.environment import SLURM_OPTIONS_VARIABLE
from deadpool.control.console import print_line
from deadpool.control.coordinator.progress import console_line
from deadpool.doctor.examination import preflight
from deadpool.doctor.finding import FindingKind
from deadpool.errors import ConfigError
from deadpool.events.event import read_events
from deadpool.host.child_processes import end_with_parent

SRUN = ("srun", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none")
"""A node that dies leaves the tasks of the others alone. The one task of a node may use all its processors."""

_SHARED = ("versions", "run folder")
_ELSEWHERE = ("--clusters", "-M", "--reservation", "--nodes", "-N")
"""With these options other nodes count than those of a partition here, or another number of them."""


def command() -> list[str]:
    """`deadpool` with this interpreter, whatever PATH says on the nodes."""
    return [sys.executable, "-m", "deadpool.cli.main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScript:
    options: Sequence[str]  # of sbatch
    settings: dict[str, str]  # environment variables
    program: Sequence[str]  # what follows `deadpool agent --`
    nodes: int  # spares included
    run_dir: Path
    job_name: str
    requeue: bool
    warn_s: int
    preload: Sequence[str] = ()
    srun: Sequence[str] = ()

    def text(self) -> str:
        lines = ["#!/bin/bash", *(f"#SBATCH {shlex.quote(word)}" for word in self._directives())]
        lines += ["", "# DeadPool's settings; every flag of `deadpool slurm submit` has a variable."]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.settings.items()]
        lines += [
            "# What new spares are submitted with.",
            f"export {SLURM_OPTIONS_VARIABLE}={shlex.quote(self._kept())}",
        ]
        return "\n".join([*lines, "", f"exec {shlex.join(self._command())}", ""])

    def _kept(self) -> str:
        return shlex.join(self.options)

    def _directives(self) -> list[str]:
        return [
            f"--job-name={self.job_name}",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            "--no-kill",
            "--requeue" if self.requeue else "--no-requeue",
            "--open-mode=append",
            f"--output={self.run_dir / 'slurm.out'}",
            *self.options,
        ]

    def _command(self) -> list[str]:
        words = [*command(), "slurm", "batch", f"--run-dir={self.run_dir}", f"--warn-s={self.warn_s}"]
        words += ["--requeue"] if self.requeue else []
        words += [f"--preload={package}" for package in self.preload]
        words += [f"--srun={option}" for option in self.srun]
        return [*words, "--", *self.program]


def node_command(
    run_dir: Path, program: Sequence[str], preload: Sequence[str], *, requeue: bool, warn_s: int
) -> list[str]:
    """What srun starts on each node."""
    words = [*command(), "slurm", "node", f"--run-dir={run_dir}", f"--warn-s={warn_s}"]
    words += ["--requeue"] if requeue else []
    return [*words, *(f"--preload={package}" for package in preload), "--", *program]


def spare_name(job_id: str) -> str:
    """The name of the jobs that bring spares for this job; they are found by it."""
    return f"deadpool-spare-{job_id}"


def spare_script(run_dir: Path, attempt: str, srun: Sequence[str], folder: str) -> str:
    """Returns the batch script of a spare. It starts in the same folder as the job. A step of srun gets the signal of a
    preemption, a batch script does not."""
    node = [*command(), "slurm", "spare", f"--run-dir={run_dir}", f"--of={attempt}"]
    return f"#!/bin/bash\ncd {shlex.quote(folder)} || exit\nexec {shlex.join([*SRUN, *srun, *node])}\n"


def spare_directives(job_id: str, run_dir: Path, options: Sequence[str]) -> list[str]:
    return [
        f"--job-name={spare_name(job_id)}",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--no-requeue",
        "--open-mode=append",
        f"--output={run_dir / 'spares.out'}",
        *options,
    ]


_POLL_S = 0.5
_SRUN_S = 5.0
"""After the job's end, for the tasks of all nodes to end."""
_NO_BEAT_S = 60.0


@dataclass(slots=True)
class BatchHost:
    folder: RunFolder
    job_id: str
    command: Sequence[str]  # what srun starts on each node
    srun: Sequence[str] = ()
    _printed: int = 0
    _ended_by: int = 0

    def run(self) -> int:
        """Returns the job's exit code."""
        signal.signal(signal.SIGTERM, self._on_signal)
        srun = subprocess.Popen(
            [*SRUN, *self.srun, *self.command], stdin=subprocess.DEVNULL, preexec_fn=end_with_parent(signal.SIGTERM)
        )
        try:
            code = self._await_result(srun)
            self.folder.acknowledge()
            self._print_events()
            _await_end(srun, _SRUN_S)
            self._cancel_spares()
            print_line(f"[deadpool] job {self.job_id} ended with {code}")
            return code
        finally:
            if srun.poll() is None:
                srun.terminate()
                _await_end(srun, _SRUN_S)
            if srun.poll() is None:
                srun.kill()
                srun.wait()

    def _await_result(self, srun: subprocess.Popen[bytes]) -> int:
        """srun may die alone, or wait for ever. Without it the job is over when no coordinator acts any more."""
        beat, since = self.folder.last_beat(), time.monotonic()
        while (result := self.folder.result()) is None:
            if self._ended_by:
                return 128 + self._ended_by
            if (newest := self.folder.last_beat()) != beat or srun.poll() is None:
                beat, since = newest, time.monotonic()
            elif time.monotonic() > since + (_NO_BEAT_S if beat is not None else 0):
                return srun.returncode or 1
            self._print_events()
            time.sleep(_POLL_S)
        return result

    def _print_events(self) -> None:
        records = read_events(self.folder.run_dir.events)
        for record in records[self._printed :]:
            if line := console_line(record):
                print_line(f"[deadpool] {line}")
        self._printed = len(records)

    def _cancel_spares(self) -> None:
        try:
            client.cancel([each.job_id for each in client.own_jobs(spare_name(self.job_id))])
        except SlurmError as error:
            print_line(f"[deadpool] jobs that bring spares could not be cancelled: {error}")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._ended_by = number


def _await_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def check_before_submission(run_dir: Path) -> None:
    """Raises ConfigError with all that would stop the job."""
    report = preflight(run_dir=run_dir)
    bad = [each for each in report.findings if each.kind is FindingKind.FINDING and each.check in _SHARED]
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
