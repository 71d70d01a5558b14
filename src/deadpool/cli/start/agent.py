"""`deadpool agent`: one per machine; starts trainers, keeps snapshots in memory, and sends copies to other nodes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.arguments import check_health_root, folder_given_as
from deadpool.cli.start.options import with_settings
from deadpool.cli.start.run import (
    MODULE_HELP,
    NO_PYTHON_HELP,
    PRELOAD_HELP,
    SCRIPT_HELP,
    checked_preload,
    checked_program,
)
from deadpool.cli.words import tell_misspelt_variables
from deadpool.config.values import AGENT

if TYPE_CHECKING:
    from deadpool.control.agent.agent import AgentProcess
    from deadpool.protocol.identity import Address

_CONNECT_S = 60.0


@with_settings(AGENT)
def agent(
    script: Annotated[list[str], typer.Argument(help=SCRIPT_HELP)],
    join: Annotated[
        str | None,
        typer.Option(
            help="the coordinator's HOST:PORT; several are separated by commas (default: inside of a Slurm allocation, "
            "found by itself; then this command also starts the coordinators)"
        ),
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help=MODULE_HELP)] = False,
    no_python: Annotated[bool, typer.Option("--no-python", help=NO_PYTHON_HELP)] = False,
    preload: Annotated[list[str] | None, typer.Option(metavar="PACKAGE", help=PRELOAD_HELP)] = None,
    name: Annotated[str | None, typer.Option(help="this node's name (default: host name and process id)")] = None,
    rack: Annotated[
        str | None, typer.Option(help="the rack, or whatever fails as one, that this node is in (default: its own)")
    ] = None,
    spare: Annotated[bool, typer.Option(help="join as a spare")] = False,
    logs: Annotated[Path, typer.Option(parser=folder_given_as("--logs"), help="folder for the trainers' logs")] = Path(
        "deadpool-logs"
    ),
    ready_file: Annotated[
        Path | None, typer.Option(help="a file that exists while this node trains, or could take the ranks of another")
    ] = None,
    lease: Annotated[
        Path | None,
        typer.Option(help="lock file of a machine that serves several jobs, set by deadpool pool join", hidden=True),
    ] = None,
    job: Annotated[str, typer.Option(help="the job's name, for others that look at the lock", hidden=True)] = "",
    fork_server: Annotated[int | None, typer.Option(help="descriptor of a fork server's socket", hidden=True)] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Join a job, also a running one. The job's secret is read from the file named by DEADPOOL_SECRET_FILE.

    On SIGTERM the node is drained: a spare takes its ranks first, where there is one; a spare leaves at once. A second
    SIGTERM, or SIGINT, ends the agent without that."""
    from deadpool.cli.start.addresses import own_address
    from deadpool.config.resolution import resolve_agent
    from deadpool.control.agent.agent import AgentProcess
    from deadpool.control.launch.folder_lock import unusable
    from deadpool.errors import ConfigError
    from deadpool.host.code_folders import own_variables
    from deadpool.host.private_files import ProcessLock, make_private_folder
    from deadpool.views.metrics.endpoint import check_package
    from deadpool.wire.credentials import read_credentials

    node = name or f"{socket.gethostname()}-{os.getpid()}"
    program, packages = checked_program(script, module=module, no_python=no_python), checked_preload(preload)
    if join is None:
        from deadpool.cli.engines.slurm import run_unsubmitted

        if name or rack or spare:
            raise ConfigError(
                "--name, --rack and --spare need --join HOST:PORT as well, the address of the job's coordinator. Leave "
                "all of them out only inside of a Slurm allocation, which says what this node is"
            )
        raise typer.Exit(run_unsubmitted(program, list(packages), flags))
    tell_misspelt_variables()
    settings = resolve_agent(flags)
    check_health_root(settings.health_root.replace("{node}", node))
    check_package(settings.metrics_port)
    try:
        make_private_folder(logs)
    except OSError as error:
        raise unusable("logs", logs, error) from None
    coordinators = addresses(join)
    address = own_address(flags["host"], flags["interface"], coordinators[0])
    _set_environment(flags["interface"], flags["tls"])
    os.environ.update(own_variables(settings.compiled_folder, node))

    def make() -> AgentProcess:
        return AgentProcess(
            node=node,
            rack=rack,
            spare=spare,
            settings=settings,
            script=program,
            host=address,
            logs=logs,
            credentials=read_credentials(serving=True),
            fork_server=socket.socket(fileno=fork_server) if fork_server is not None else None,
            preload=list(packages),
            ready_file=ready_file,
            lease=ProcessLock(lease, f"job {job}") if lease is not None else None,
        )

    failed = asyncio.run(_serve(make, coordinators))
    raise typer.Exit(1 if failed else 0)


def addresses(text: str, setting: str = "join", whose: str = "the coordinator") -> list[Address]:
    from deadpool.errors import ConfigError
    from deadpool.protocol.identity import LAST_PORT, Address

    try:
        return [Address.parse(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{setting}={text!r} cannot be used: give HOST:PORT of {whose}, with a port from 1 to {LAST_PORT}"
        ) from None


def _set_environment(interface: str | None, tls: str | None) -> None:
    """Trainers connect to other nodes too. They get both by the environment, as they get the secret."""
    from deadpool.config.environment import TLS_VARIABLE
    from deadpool.wire.credentials import settled
    from deadpool.wire.deadline import collective_variables

    if tls is not None:
        os.environ[TLS_VARIABLE] = settled(tls)
    for name, value in collective_variables(interface or "").items():
        os.environ.setdefault(name, value)


async def _serve(make: Callable[[], AgentProcess], coordinators: list[Address]) -> bool:
    """`make` is called on the event loop, which the process keeps. Returns whether the node failed."""
    from deadpool.control.console import print_line
    from deadpool.errors import ConfigError

    process = make()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, process.leave, "its agent got SIGTERM")
    loop.add_signal_handler(signal.SIGINT, process.stop, "agent got SIGINT")
    try:
        outcome = await process.run(coordinators, patience_s=_CONNECT_S)
    except TimeoutError as error:
        places = ", ".join(map(str, coordinators))
        found = f"no coordinator took this node in at {places} within {_CONNECT_S:g} s"
        if str(error):
            raise ConfigError(
                f"{found}: {error}; give all nodes the same secret and --tls, or correct --join"
            ) from None
        raise ConfigError(f"{found}: start it with deadpool coordinator, or correct --join") from None
    if outcome.failed:
        print_line(f"[deadpool] node {process.node} ends: {outcome.reason}")
    return outcome.failed
