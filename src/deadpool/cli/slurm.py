"""`deadpool slurm`: jobs under Slurm. `batch`, `node` and `spare` are called by the batch scripts."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.options import with_settings
from deadpool.cli.program import MODULE_HELP, PRELOAD_HELP, SCRIPT_HELP, checked_program
from deadpool.setting import RUN

if TYPE_CHECKING:
    from deadpool.clusters.slurm.batch_script import JobScript

app = typer.Typer(help="Protected jobs under Slurm.", no_args_is_help=True)
SCRIPT_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": True}

_Script = Annotated[list[str], typer.Argument(help=SCRIPT_HELP)]
_RunDir = Annotated[Path, typer.Option(help="the job's run folder, which all nodes share")]
_Preload = Annotated[list[str] | None, typer.Option(metavar="PACKAGE", help=PRELOAD_HELP)]
_Srun = Annotated[
    list[str] | None,
    typer.Option("--srun", metavar="OPTION", help="one more option for srun, as in --srun=--export=ALL"),
]
_Requeue = Annotated[
    bool, typer.Option("--requeue", help="start the script anew in a new allocation when the time limit is reached")
]
_WarnS = Annotated[int, typer.Option(help="seconds before the end of the allocation at which the script gets a notice")]


def _option(short: str, long: str, what: str) -> Any:
    names = [name for name in (short, long) if name]
    return typer.Option(*names, help=f"{what}, as for sbatch")


_Text = str | None


@with_settings(RUN)
def submit(
    script: _Script,
    module: Annotated[bool, typer.Option("--module", "-m", help=MODULE_HELP)] = False,
    preload: _Preload = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="folder that all nodes share (default: a new one under ./deadpool-runs)")
    ] = None,
    time: Annotated[_Text, _option("-t", "--time", "time limit")] = None,
    partition: Annotated[_Text, _option("-p", "--partition", "partition")] = None,
    account: Annotated[_Text, _option("-A", "--account", "account")] = None,
    qos: Annotated[_Text, _option("-q", "--qos", "quality of service")] = None,
    reservation: Annotated[_Text, _option("", "--reservation", "reservation")] = None,
    constraint: Annotated[_Text, _option("-C", "--constraint", "features of nodes")] = None,
    gres: Annotated[_Text, _option("", "--gres", "generic resources of each node")] = None,
    gpus_per_node: Annotated[_Text, _option("", "--gpus-per-node", "GPUs of each node")] = None,
    cpus_per_task: Annotated[_Text, _option("-c", "--cpus-per-task", "processors of each node")] = None,
    mem: Annotated[_Text, _option("", "--mem", "memory of each node")] = None,
    exclude: Annotated[_Text, _option("-x", "--exclude", "nodes not to use")] = None,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="whole nodes, as for sbatch")] = False,
    job_name: Annotated[str, _option("-J", "--job-name", "name of the job")] = "deadpool",
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="any other option for sbatch, as in --sbatch=--nice=10")
    ] = None,
    srun: _Srun = None,
    requeue: _Requeue = False,
    warn_s: _WarnS = 120,
    *,
    flags: dict[str, Any],
) -> None:
    """Submit a protected job: nodes that train, spares, and by itself a new spare for each node that is lost."""
    from deadpool.clusters.slurm import client
    from deadpool.clusters.slurm.allocation import is_inside
    from deadpool.errors import ConfigError

    arguments = dict(locals())
    made = _job_script(arguments)
    if is_inside():
        raise ConfigError(
            "this shell is inside of an allocation: start `srun deadpool agent -- SCRIPT` in it, or leave it"
        )
    made.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    job_id = client.submit([], made.text())
    print(f"Submitted batch job {job_id}")
    print(f"run folder: {made.run_dir}")
    print(f"look at it: {shlex.join(['deadpool', 'status', '--run-dir', str(made.run_dir)])}")


@with_settings(RUN)
def script(
    script: _Script,
    module: Annotated[bool, typer.Option("--module", "-m", help=MODULE_HELP)] = False,
    preload: _Preload = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="folder that all nodes share (default: a new one under ./deadpool-runs)")
    ] = None,
    time: Annotated[_Text, _option("-t", "--time", "time limit")] = None,
    partition: Annotated[_Text, _option("-p", "--partition", "partition")] = None,
    account: Annotated[_Text, _option("-A", "--account", "account")] = None,
    qos: Annotated[_Text, _option("-q", "--qos", "quality of service")] = None,
    reservation: Annotated[_Text, _option("", "--reservation", "reservation")] = None,
    constraint: Annotated[_Text, _option("-C", "--constraint", "features of nodes")] = None,
    gres: Annotated[_Text, _option("", "--gres", "generic resources of each node")] = None,
    gpus_per_node: Annotated[_Text, _option("", "--gpus-per-node", "GPUs of each node")] = None,
    cpus_per_task: Annotated[_Text, _option("-c", "--cpus-per-task", "processors of each node")] = None,
    mem: Annotated[_Text, _option("", "--mem", "memory of each node")] = None,
    exclude: Annotated[_Text, _option("-x", "--exclude", "nodes not to use")] = None,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="whole nodes, as for sbatch")] = False,
    job_name: Annotated[str, _option("-J", "--job-name", "name of the job")] = "deadpool",
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="any other option for sbatch, as in --sbatch=--nice=10")
    ] = None,
    srun: _Srun = None,
    requeue: _Requeue = False,
    warn_s: _WarnS = 120,
    *,
    flags: dict[str, Any],
) -> None:
    """Print the batch script that `deadpool slurm submit` would submit."""
    print(_job_script(dict(locals())).text(), end="")


def _job_script(arguments: dict[str, Any]) -> JobScript:
    import secrets
    import time

    from deadpool.cli.job_client import RUNS
    from deadpool.clusters.slurm.batch_script import JobScript
    from deadpool.clusters.slurm.options import option_words
    from deadpool.config import resolve
    from deadpool.environment import variable_of

    flags = {name: value for name, value in arguments["flags"].items() if value is not None}
    config = resolve({"nproc_per_node": 1, **flags})  # what cannot be used is refused before anything is submitted
    program = checked_program(arguments["script"], module=arguments["module"], no_python=False)
    name = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
    given = {**dataclasses.asdict(config), **flags}
    shown = [each for each in given if each in flags or each in ("nodes", "spares")]
    return JobScript(
        options=option_words(arguments, arguments["sbatch"] or []),
        settings={variable_of(each): _text(given[each]) for each in shown},
        program=program,
        nodes=config.nodes + config.spares,
        run_dir=(arguments["run_dir"] or RUNS / name).absolute(),
        job_name=arguments["job_name"],
        requeue=arguments["requeue"],
        warn_s=arguments["warn_s"],
        preload=arguments["preload"] or (),
        srun=arguments["srun"] or (),
    )


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def batch(
    script: _Script,
    run_dir: _RunDir,
    preload: _Preload = None,
    srun: _Srun = None,
    requeue: _Requeue = False,
    warn_s: _WarnS = 120,
) -> None:
    """What the batch script runs: a node of the job on each node of the allocation, until the job ends."""
    from deadpool.clusters.slurm.allocation import read_allocation
    from deadpool.clusters.slurm.batch import BatchHost
    from deadpool.clusters.slurm.batch_script import command
    from deadpool.clusters.slurm.job_settings import describe, job_settings
    from deadpool.clusters.slurm.run_folder import RunFolder

    allocation = read_allocation(os.environ)
    folder = RunFolder(run_dir, allocation.attempt)
    program = checked_program(script, module=False, no_python=False)
    config = job_settings(allocation, os.environ, {})
    folder.begin(describe(allocation, config, program, preload or (), srun or ()))
    node = [*command(), "slurm", "node", f"--run-dir={run_dir}", f"--warn-s={warn_s}"]
    node += ["--requeue"] if requeue else []
    node += [f"--preload={package}" for package in preload or ()]
    node += [f"--srun={option}" for option in srun or ()]
    host = BatchHost(folder, allocation.job_id, [*node, "--", *program], srun or ())
    raise typer.Exit(host.run())


def node(
    script: _Script,
    run_dir: _RunDir,
    preload: _Preload = None,
    srun: _Srun = None,
    requeue: _Requeue = False,
    warn_s: _WarnS = 120,
) -> None:
    """What srun starts once on each node of the allocation."""
    program = checked_program(script, module=False, no_python=False)
    code = run_node(program, run_dir, preload=preload or [], srun=srun or [], requeue=requeue, warn_s=warn_s, flags={})
    raise typer.Exit(code)


def run_node(
    program: list[str],
    run_dir: Path,
    *,
    preload: list[str],
    srun: list[str],
    requeue: bool,
    warn_s: float,
    flags: dict[str, Any],
) -> int:
    from deadpool.clusters.slurm.allocation import read_allocation
    from deadpool.clusters.slurm.job_settings import job_settings
    from deadpool.clusters.slurm.node import SlurmNode
    from deadpool.clusters.slurm.run_folder import RunFolder

    allocation = read_allocation(os.environ)
    folder = RunFolder(run_dir.absolute(), allocation.attempt)
    config = job_settings(allocation, os.environ, flags)
    return SlurmNode(allocation, folder, config, program, preload, requeue=requeue, warn_s=warn_s, srun=srun).run()


def spare(
    run_dir: _RunDir,
    of: Annotated[str, typer.Option(help="the job that it joins, and how often that was requeued")],
) -> None:
    """What a one-node job runs: it joins another job as a spare."""
    from deadpool.clusters.slurm.allocation import read_allocation
    from deadpool.clusters.slurm.job_settings import job_settings
    from deadpool.clusters.slurm.node import SlurmNode
    from deadpool.clusters.slurm.run_folder import RunFolder

    allocation = read_allocation(os.environ)
    folder = RunFolder(run_dir, of)
    described = folder.await_begun()
    given = {"nodes": described["nodes"], "nproc_per_node": described["nproc_per_node"]}
    config = job_settings(allocation, os.environ, given)
    node = SlurmNode(allocation, folder, config, described["program"], described["preload"], joins_other=True)
    raise typer.Exit(node.run())


app.command(context_settings=SCRIPT_LAST)(submit)
app.command(context_settings=SCRIPT_LAST)(script)
app.command(context_settings=SCRIPT_LAST, hidden=True)(batch)
app.command(context_settings=SCRIPT_LAST, hidden=True)(node)
app.command(hidden=True)(spare)
