"""`deadpool agent`: one per machine; starts trainers, keeps the arena, moves snapshots."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deadpool.cli.program import MODULE_HELP, NO_PYTHON_HELP, PRELOAD_HELP, SCRIPT_HELP, checked_program

if TYPE_CHECKING:
    from deadpool.control.thread_priority import Courtesy
    from deadpool.protocol.topology import Address

_PATIENCE_S = 60.0


def agent(
    script: Annotated[list[str], typer.Argument(help=SCRIPT_HELP)],
    join: Annotated[str, typer.Option(help="the coordinator's HOST:PORT; of several, with commas in between")],
    module: Annotated[bool, typer.Option("--module", "-m", help=MODULE_HELP)] = False,
    no_python: Annotated[bool, typer.Option("--no-python", help=NO_PYTHON_HELP)] = False,
    preload: Annotated[list[str] | None, typer.Option(metavar="PACKAGE", help=PRELOAD_HELP)] = None,
    name: Annotated[str | None, typer.Option(help="this node's name; default: host name and process id")] = None,
    rack: Annotated[str | None, typer.Option(help="what this node may fail with; default: a rack of its own")] = None,
    spare: Annotated[bool, typer.Option(help="join as a spare")] = False,
    standby: Annotated[int, typer.Option(help="extra trainers parked on this node")] = 0,
    rehearsals: Annotated[int, typer.Option(help="as a spare: trainers parked per seat, of different ranks")] = 1,
    host: Annotated[
        str | None, typer.Option(help="address that other nodes reach this one at; default: that towards --join")
    ] = None,
    interface: Annotated[str | None, typer.Option(help="network interface whose address that is")] = None,
    tls: Annotated[str | None, typer.Option(help="as at the coordinator; default: DEADPOOL_TLS, else off")] = None,
    bulk_nice: Annotated[int, typer.Option(help="niceness of the threads that move copies")] = 5,
    bulk_cpus: Annotated[str, typer.Option(help="CPUs that these threads keep to, as in 0-3,8; default: any")] = "",
    logs: Annotated[Path, typer.Option(help="folder for the trainers' logs")] = Path("deadpool-logs"),
    fork_server: Annotated[int | None, typer.Option(help="descriptor of a fork_server's socket", hidden=True)] = None,
) -> None:
    """Join a job, also a running one. The job's secret is read from the file named by DEADPOOL_SECRET_FILE.

    On SIGTERM the node leaves: its ranks are handed over to a spare first, where there is one; a spare goes at once. A
    second SIGTERM, or SIGINT, ends it without that."""
    from deadpool.cli.addresses import own_address
    from deadpool.config import parse_cpus
    from deadpool.control.thread_priority import Courtesy
    from deadpool.owner_only import make_private_folder

    program = checked_program(script, module=module, no_python=no_python)
    make_private_folder(logs)
    node = name or f"{socket.gethostname()}-{os.getpid()}"
    courtesy = Courtesy(bulk_nice, parse_cpus(bulk_cpus))
    coordinators = _addresses(join)
    address = own_address(host, interface, coordinators[0])
    _tell_children(interface, tls)
    failed = asyncio.run(
        _serve(
            coordinators,
            node,
            rack,
            spare,
            standby,
            rehearsals,
            program,
            address,
            logs,
            courtesy,
            fork_server,
            preload or [],
        )
    )
    raise typer.Exit(1 if failed else 0)


def _addresses(text: str) -> list[Address]:
    from deadpool.errors import ConfigError
    from deadpool.protocol.topology import Address

    try:
        return [Address.parse(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"join={text!r} cannot be used: give HOST:PORT of the coordinator") from None


def _tell_children(interface: str | None, tls: str | None) -> None:
    """By the environment, as the secret is: trainers connect too."""
    from deadpool.wire.interfaces import collective_variables
    from deadpool.wire.tls import TLS_VARIABLE, settled

    if tls is not None:
        os.environ[TLS_VARIABLE] = settled(tls)
    for name, value in collective_variables(interface or "").items():
        os.environ.setdefault(name, value)


async def _serve(
    coordinators: list[Address],
    node: str,
    rack: str | None,
    spare: bool,
    standby: int,
    rehearsals: int,
    script: list[str],
    host: str,
    logs: Path,
    courtesy: Courtesy,
    fork_server: int | None,
    preload: list[str],
) -> bool:
    from deadpool.control.agent import AgentProcess
    from deadpool.errors import ConfigError
    from deadpool.wire.credentials import read_credentials

    process = AgentProcess(
        node=node,
        rack=rack,
        spare=spare,
        standby=standby,
        rehearsals=rehearsals,
        script=script,
        host=host,
        logs=logs,
        credentials=read_credentials(serving=True),
        courtesy=courtesy,
        fork_server=socket.socket(fileno=fork_server) if fork_server is not None else None,
        preload=preload,
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, process.leave, "its agent got SIGTERM")
    loop.add_signal_handler(signal.SIGINT, process.stop, "agent got SIGINT")
    try:
        outcome = await process.run(coordinators, patience_s=_PATIENCE_S)
    except TimeoutError:
        places = ", ".join(map(str, coordinators))
        raise ConfigError(f"no coordinator answered at {places} within {_PATIENCE_S:g} s") from None
    if outcome.failed:
        print(f"[deadpool] node {node} ends: {outcome.reason}", flush=True)
    return outcome.failed
