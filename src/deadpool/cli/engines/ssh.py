"""`deadpool ssh`: a job on machines that are reached by ssh, without a scheduler."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deadpool.cli.arguments import check_at_least, folder_given_as
from deadpool.cli.interrupts import CODE_INTERRUPTED
from deadpool.cli.start.options import with_settings
from deadpool.cli.start.run import EMPTY_SCRIPT, MODULE_HELP, PRELOAD_HELP, SCRIPT_HELP
from deadpool.cli.words import tell_misspelt_variables
from deadpool.config.values import RUN
from deadpool.control.console import print_line

_LEAST_LEASE_S = 2.0
_FORWARDED = ("DEADPOOL_", "NCCL_", "GLOO_", "TORCH_", "UCX_", "PYTHONPATH", "OMP_NUM_THREADS")
_KEPT_HERE = ("DEADPOOL_SECRET", "DEADPOOL_SECRET_FILE")


@with_settings(RUN)
def ssh(
    script: Annotated[list[str], typer.Argument(help=SCRIPT_HELP)],
    hosts: Annotated[
        Path, typer.Option(help="file with one machine per line, as ssh takes it; the last ones are spares")
    ],
    module: Annotated[bool, typer.Option("--module", "-m", help=MODULE_HELP)] = False,
    preload: Annotated[list[str] | None, typer.Option(metavar="PACKAGE", help=PRELOAD_HELP)] = None,
    restart: Annotated[
        bool, typer.Option(help="start what died again, as a spare, as soon as its machine answers")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="only check the machines, and start nothing")] = False,
    lease_s: Annotated[
        float, typer.Option(help="seconds after which machines that hear nothing from here end their part of the job")
    ] = 300.0,
    fan_out: Annotated[int, typer.Option(help="machines that are called at the same time")] = 32,
    python: Annotated[str, typer.Option(help="python on the machines")] = sys.executable,
    folder: Annotated[
        Path | None, typer.Option(help="folder on the machines in which the script runs (default: as here)")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="a variable for the machines (repeatable); those of DeadPool, NCCL, "
            "Gloo, torch, UCX, PYTHONPATH and OMP_NUM_THREADS are passed on in any case",
        ),
    ] = None,
    ssh_config: Annotated[Path | None, typer.Option(help="configuration file of ssh (default: yours)")] = None,
    ssh_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="an option of ssh (repeatable), as behind its -o")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            parser=folder_given_as("--run-dir"),
            help="folder for events and logs, here and on the machines (default: a new one under ./deadpool-runs)",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings below")] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Start a job on the machines of a file, over ssh, and train until the script has ended on every rank.

    Versions and clocks are compared first. Everything ends with this command, however that ends; if only connections
    are lost, the job goes on for --lease-s. Exits with the code of the job."""
    from deadpool.clusters.ssh.connection import SshClient
    from deadpool.clusters.ssh.hosts import read_hosts, settle
    from deadpool.clusters.ssh.launcher import SshJob, SshOptions
    from deadpool.control.launch.launcher import new_run_dir
    from deadpool.control.launch.run_dir import RunDir
    from deadpool.errors import ConfigError

    tell_misspelt_variables()
    check_at_least(_LEAST_LEASE_S, lease_s=lease_s)
    check_at_least(1, fan_out=fan_out)
    if not script[0]:
        raise ConfigError(EMPTY_SCRIPT)
    machines = read_hosts(hosts)
    settings, used = settle(flags, config, machines)
    words = ["-m", *script] if module else script
    variables = forwarded(env or [])
    found = {name: variables[name] for name in ("PYTHONPATH",) if name in variables}
    client = SshClient(config=str(ssh_config or ""), options=tuple(ssh_option or ()), python=python, variables=found)
    here = Path.cwd()
    options = SshOptions(
        client=client,
        folder=folder or here,
        fan_out=fan_out,
        lease_s=lease_s,
        restart=restart,
        check_only=check,
    )
    run_folder = RunDir.create(run_dir) if run_dir else new_run_dir()
    print_line(f"[deadpool] run folder: {run_folder.path}")
    job = SshJob(settings, used, options, run_folder, words, variables, tuple(preload or ()))
    raise typer.Exit(asyncio.run(_run(job)))


async def _run(job: Any) -> int:
    """Interrupts cancel the job, which then ends everything on the machines."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(job.run())
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if sig is not signal.SIGHUP or signal.getsignal(sig) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(sig, task.cancel)
    try:
        return int(await task)
    except asyncio.CancelledError:
        print_line("[deadpool] interrupted: everything on the machines was ended")
        return CODE_INTERRUPTED


def forwarded(named: list[str]) -> dict[str, str]:
    """The variables that go to the machines; never the secret of another job."""
    from deadpool.errors import ConfigError

    variables = {
        name: value for name, value in os.environ.items() if name.startswith(_FORWARDED) and name not in _KEPT_HERE
    }
    for word in named:
        name, given, value = word.partition("=")
        if not name or (not given and name not in os.environ):
            raise ConfigError(
                f"env={word!r} cannot be used: give NAME=VALUE, or the name of a variable that is set here"
            )
        variables[name] = value if given else os.environ[name]
    return variables
