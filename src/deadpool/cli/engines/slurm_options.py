"""Flags that `deadpool slurm submit` and `deadpool slurm script` share: options of sbatch, under the same names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from deadpool.cli.given import folder_given_as
from deadpool.cli.start.program import MODULE_HELP, PRELOAD_HELP, SCRIPT_HELP
from deadpool.errors import ConfigError

Script = Annotated[list[str], typer.Argument(help=SCRIPT_HELP)]
RunDir = Annotated[
    Path, typer.Option(parser=folder_given_as("--run-dir"), help="the job's run folder, which all nodes share")
]
Preload = Annotated[list[str] | None, typer.Option(metavar="PACKAGE", help=PRELOAD_HELP)]
Srun = Annotated[
    list[str] | None,
    typer.Option("--srun", metavar="OPTION", help="one more option for srun, as in --srun=--export=ALL"),
]
Requeue = Annotated[
    bool, typer.Option("--requeue", help="start the script anew in a new allocation when the time limit is reached")
]
WarnS = Annotated[int, typer.Option(help="seconds before the end of the allocation at which the script gets a notice")]
WARN_S = 120

_SBATCH = {
    "time": ("-t", "time limit"),
    "partition": ("-p", "partition"),
    "account": ("-A", "account"),
    "qos": ("-q", "quality of service"),
    "reservation": ("", "reservation"),
    "constraint": ("-C", "features of nodes"),
    "gres": ("", "generic resources of each node"),
    "gpus_per_node": ("", "GPUs of each node"),
    "cpus_per_task": ("-c", "processors of each node"),
    "mem": ("", "memory of each node"),
    "exclude": ("-x", "nodes not to use"),
}


def with_submission(*, submits: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the flags of a submission. It gets all of them as one dict."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*, flags: dict[str, Any], **submission: Any) -> None:
            function(submission, flags)

        parameters = [
            *_parameters(),
            *([_PREFLIGHT, _AWAIT_START] if submits else []),
            _keyword("flags", dict[str, Any]),
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorate


def check_options(submission: dict[str, Any]) -> None:
    """An empty one comes from a variable of the shell that is not set, and sbatch would take what follows for it."""
    for name in (*_SBATCH, "job_name"):
        if submission[name] == "":
            flag = name.replace("_", "-")
            raise ConfigError(f"{name}='' cannot be used: give what sbatch takes as --{flag}, or leave it out")


def _parameters() -> list[inspect.Parameter]:
    folder = typer.Option(
        parser=folder_given_as("--run-dir"),
        help="folder that all nodes share (default: a new one under ./deadpool-runs)",
    )
    more = typer.Option(metavar="OPTION", help="any other option for sbatch, as in --sbatch=--nice=10")
    return [
        _keyword("script", Script),
        _keyword("module", Annotated[bool, typer.Option("--module", "-m", help=MODULE_HELP)], False),
        _keyword("preload", Preload, None),
        _keyword("run_dir", Annotated[Path | None, folder], None),
        *(_keyword(name, Annotated[str | None, _as_for_sbatch(name, *given)], None) for name, given in _SBATCH.items()),
        _keyword("exclusive", Annotated[bool, typer.Option("--exclusive", help="whole nodes, as for sbatch")], False),
        _keyword("job_name", Annotated[str, _as_for_sbatch("job_name", "-J", "name of the job")], "deadpool"),
        _keyword("sbatch", Annotated[list[str] | None, more], None),
        _keyword("srun", Srun, None),
        _keyword("requeue", Requeue, False),
        _keyword("warn_s", WarnS, WARN_S),
    ]


def _as_for_sbatch(name: str, short: str, what: str) -> Any:
    names = [each for each in (short, f"--{name.replace('_', '-')}") if each]
    return typer.Option(*names, help=f"{what}, as for sbatch")


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


_PREFLIGHT = _keyword(
    "preflight",
    Annotated[bool, typer.Option(help="look at the run folder, the installation and the number of nodes first")],
    True,
)
_AWAIT_START = _keyword(
    "await_start",
    Annotated[
        bool, typer.Option("--await-start", help="stay until it starts; say what it waits for when that changes")
    ],
    False,
)
