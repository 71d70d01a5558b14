"""The text of the batch scripts: that of a job, and that of a one-node job which brings a spare."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deadpool.config.environment import SLURM_OPTIONS_VARIABLE

SRUN = ("srun", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none")
"""A node that dies leaves the tasks of the others alone. The one task of a node may use all its processors."""


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
