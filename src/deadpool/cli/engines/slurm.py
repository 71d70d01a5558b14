"""`deadpool slurm`: jobs under Slurm. `batch`, `node` and `spare` are called by the batch scripts.

`deadpool slurm submit` and `deadpool slurm script` share the options of sbatch, under the same names.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.arguments import check_at_least, folder_given_as
from deadpool.cli.start.options import with_settings
from deadpool.cli.start.run import MODULE_HELP, PRELOAD_HELP, SCRIPT_HELP, checked_program
from deadpool.cli.words import tell_misspelt_variables
from deadpool.config.values import RUN
from deadpool.errors import ConfigError

if TYPE_CHECKING:
    from deadpool.clusters.slurm.batch import JobScript

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

app = typer.Typer(help="Protected jobs under Slurm.", no_args_is_help=True)
SCRIPT_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": True}


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


@with_settings(RUN)
@with_submission(submits=True)
def submit(submission: dict[str, Any], flags: dict[str, Any]) -> None:
    """Submit a protected job: nodes that train, spares, and by itself a new spare for each node that is lost."""
    from deadpool.clusters.slurm.batch import check_before_submission, check_folder_is_free, check_node_count
    from deadpool.clusters.slurm.options import is_inside
    from deadpool.clusters.slurm.run_folder import note_submission
    from deadpool.clusters.slurm.waiting import StartWatch
    from deadpool.control.launch.folder_lock import lock_folder
    from deadpool.errors import ConfigError
    from deadpool.host.private_files import make_private_folder

    made = _job_script(submission, flags)
    if is_inside():
        raise ConfigError(
            "this shell is inside of an allocation: start `srun deadpool agent -- SCRIPT` in it, or leave it"
        )
    if submission["preflight"]:
        check_before_submission(made.run_dir)
        check_node_count(made.nodes, made.options)
    make_private_folder(made.run_dir)
    with contextlib.closing(lock_folder(made.run_dir, "run_dir")):  # of two that submit, one is first
        check_folder_is_free(made.run_dir)
        job_id = _sbatch(made.text())
        note_submission(made.run_dir, job_id)
    print(f"Submitted batch job {job_id}")
    print(f"run folder: {made.run_dir}")
    print(f"look at it: {shlex.join(['deadpool', 'status', str(made.run_dir)])}", flush=True)
    watch = StartWatch(job_id, lambda words: print(f"job {job_id}: {words}", flush=True))
    if watch.first_look() and submission["await_start"]:
        watch.follow()


@with_settings(RUN)
@with_submission(submits=False)
def script(submission: dict[str, Any], flags: dict[str, Any]) -> None:
    """Print the batch script that `deadpool slurm submit` would submit."""
    print(_job_script(submission, flags).text(), end="")


def _sbatch(text: str) -> str:
    from deadpool.clusters.slurm import client
    from deadpool.errors import ConfigError

    try:
        return client.submit([], text)
    except client.SlurmError as error:
        words = " ".join(str(error).split()).rstrip(".")  # sbatch's own, in one line
        raise ConfigError(
            f"the job was not submitted: {words}. Start this where sbatch works, as on a login node of the cluster"
        ) from error


def _job_script(submission: dict[str, Any], flags: dict[str, Any]) -> JobScript:
    """What cannot be used is refused before anything is submitted."""
    from deadpool.cli.job_client import RUNS
    from deadpool.clusters.slurm.batch import JobScript
    from deadpool.clusters.slurm.options import checked, option_words
    from deadpool.config.environment import variable_of
    from deadpool.config.resolution import resolve
    from deadpool.control.launch.launcher import new_run_name

    tell_misspelt_variables()
    check_at_least(0, warn_s=submission["warn_s"])
    check_options(submission)
    given = {name: value for name, value in flags.items() if value is not None}
    config = checked(resolve(given))
    settings = {"nodes": config.nodes, "spares": config.spares, **given}
    return JobScript(
        options=option_words(submission, submission["sbatch"] or ()),
        settings={variable_of(name): _text(value) for name, value in settings.items()},
        program=checked_program(submission["script"], module=submission["module"], no_python=False),
        nodes=config.nodes + config.spares,
        run_dir=(submission["run_dir"] or RUNS / new_run_name()).absolute(),
        job_name=submission["job_name"],
        requeue=submission["requeue"],
        warn_s=submission["warn_s"],
        preload=submission["preload"] or (),
        srun=submission["srun"] or (),
    )


def _text(value: Any) -> str:
    """Writes a value as the environment has it."""
    return ";".join(value) if isinstance(value, tuple) else str(value)


def batch(
    script: Script,
    run_dir: RunDir,
    preload: Preload = None,
    srun: Srun = None,
    requeue: Requeue = False,
    warn_s: WarnS = WARN_S,
) -> None:
    """What the batch script runs: a node of the job on each node of the allocation, until the job ends."""
    from deadpool.clusters.slurm.batch import BatchHost, node_command
    from deadpool.clusters.slurm.options import describe, job_settings, read_allocation
    from deadpool.clusters.slurm.run_folder import RunFolder

    allocation = read_allocation(os.environ)
    folder = RunFolder(run_dir, allocation.attempt)
    program = checked_program(script, module=False, no_python=False)
    config = job_settings(allocation, os.environ, {})
    folder.begin(describe(allocation, config, program, preload or (), srun or ()))
    command = node_command(run_dir, program, preload or (), requeue=requeue, warn_s=warn_s)
    raise typer.Exit(BatchHost(folder, allocation.job_id, command, srun or ()).run())


def node(
    script: Script,
    run_dir: RunDir,
    preload: Preload = None,
    requeue: Requeue = False,
    warn_s: WarnS = WARN_S,
) -> None:
    """What srun starts once on each node of the allocation."""
    program = checked_program(script, module=False, no_python=False)
    raise typer.Exit(_run_node(program, run_dir, preload or [], {}, requeue=requeue, warn_s=warn_s))


def run_unsubmitted(program: list[str], preload: list[str], flags: dict[str, Any]) -> int:
    """`srun deadpool agent` in an allocation that was made by other means. Its run folder is new for each attempt."""
    from deadpool.cli.job_client import RUNS
    from deadpool.clusters.slurm.options import read_allocation

    attempt = read_allocation(os.environ).attempt
    known = {name: value for name, value in flags.items() if name != "host"}
    return _run_node(program, RUNS / f"slurm-{attempt}", preload, known, requeue=False, warn_s=WARN_S)


def _run_node(
    program: list[str], run_dir: Path, preload: list[str], flags: dict[str, Any], *, requeue: bool, warn_s: float
) -> int:
    from deadpool.clusters.slurm.node import SlurmNode
    from deadpool.clusters.slurm.options import job_settings, read_allocation
    from deadpool.clusters.slurm.run_folder import RunFolder

    allocation = read_allocation(os.environ)
    folder = RunFolder(run_dir.absolute(), allocation.attempt)
    config = job_settings(allocation, os.environ, flags)
    return SlurmNode(allocation, folder, config, program, preload, requeue=requeue, warn_s=warn_s).run()


def spare(
    run_dir: RunDir,
    of: Annotated[str, typer.Option(help="the job that it joins, and how often that was requeued, as in 17.0")],
) -> None:
    """What a one-node job runs: it joins another job as a spare."""
    from deadpool.clusters.slurm.node import SlurmNode
    from deadpool.clusters.slurm.options import job_settings, read_allocation
    from deadpool.clusters.slurm.run_folder import RunFolder

    allocation = read_allocation(os.environ)
    folder = RunFolder(run_dir, of)
    described = folder.await_begun()
    given = {name: described[name] for name in ("nodes", "nproc_per_node")}
    config = job_settings(allocation, os.environ, given)
    joining = SlurmNode(allocation, folder, config, described["program"], described["preload"], joins_other=True)
    raise typer.Exit(joining.run())


app.command(context_settings=SCRIPT_LAST)(submit)
app.command(context_settings=SCRIPT_LAST)(script)
app.command(context_settings=SCRIPT_LAST, hidden=True)(batch)
app.command(context_settings=SCRIPT_LAST, hidden=True)(node)
app.command(hidden=True)(spare)
