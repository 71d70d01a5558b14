"""`deadpool run`: a whole job on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deadpool.cli.given import check_health_root, folder_given_as
from deadpool.cli.interrupts import CODE_INTERRUPTED, ignore_interrupts, stop_on_interrupts
from deadpool.cli.start.options import with_settings
from deadpool.cli.start.program import (
    MODULE_HELP,
    NO_PYTHON_HELP,
    PRELOAD_HELP,
    SCRIPT_HELP,
    checked_preload,
    checked_program,
)
from deadpool.cli.words import tell_misspelt_variables
from deadpool.config.values import RUN
from deadpool.control.console import print_line
from deadpool.errors import ConfigError

_MOST_NODES_HERE = 1024
"""Each is several processes of this machine."""


@with_settings(RUN)
def run(
    script: Annotated[list[str], typer.Argument(help=SCRIPT_HELP)],
    module: Annotated[bool, typer.Option("--module", "-m", help=MODULE_HELP)] = False,
    no_python: Annotated[bool, typer.Option("--no-python", help=NO_PYTHON_HELP)] = False,
    preload: Annotated[list[str] | None, typer.Option(metavar="PACKAGE", help=PRELOAD_HELP)] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            parser=folder_given_as("--run-dir"),
            help="folder for events and logs (default: a new one under ./deadpool-runs)",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings below")] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Start a coordinator and one agent per node here, and train until the script has ended on every rank."""
    from deadpool.cli.start.addresses import at_interface
    from deadpool.config.resolution import resolve
    from deadpool.control.agent.threads import bulk_cpus
    from deadpool.control.launch.launcher import LocalJob, new_run_dir, running
    from deadpool.control.launch.run_dir import RunDir
    from deadpool.views.metrics.endpoint import check_package
    from deadpool.wire.credentials import load_tls

    tell_misspelt_variables()
    settings = resolve(flags, file=config)
    _check_one_machine(settings.nodes, settings.spares)
    check_health_root(settings.health_root)
    program, packages = checked_program(script, module=module, no_python=no_python), checked_preload(preload)
    settings.check_fault_nodes()
    bulk_cpus(settings.bulk_cpus)
    settings.racks()  # what cannot be used is refused before any process is started
    settings = at_interface(settings)
    load_tls(settings.tls, serving=True)
    check_package(settings.metrics_port)
    settings.check_webhooks()
    folder = RunDir.create(run_dir) if run_dir else new_run_dir()
    stop_on_interrupts()
    try:
        print_line(f"[deadpool] run folder: {folder.path}")
        with running(LocalJob(settings, folder, program, preload=packages)) as job:
            code = job.wait()
        ignore_interrupts()
    except KeyboardInterrupt:
        ignore_interrupts()
        print_line("[deadpool] interrupted: all processes of the job are ended")
        code = CODE_INTERRUPTED
    raise typer.Exit(code)


def _check_one_machine(nodes: int, spares: int) -> None:
    for name, count in (("nodes", nodes), ("spares", spares)):
        if count > _MOST_NODES_HERE:
            raise ConfigError(
                f"{name}={count} cannot be used: `deadpool run` starts all nodes on this machine. Give at most "
                f"{_MOST_NODES_HERE}, or start the job by slurm, kubernetes or ssh"
            )
