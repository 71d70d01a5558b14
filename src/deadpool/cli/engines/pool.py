"""`deadpool pool`: one pool of spare machines for several jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_format
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.arguments import Json, check_at_least, folder_given_as

if TYPE_CHECKING:
    from deadpool.control.launch.run_dir import RunDir
    from deadpool.protocol.identity import Address
    from deadpool.wire.credentials import Credentials

app = typer.Typer(help="One pool of spare machines for several jobs.", no_args_is_help=True)
SCRIPT_LAST = {"allow_interspersed_args": False}
_FOLDER_HELP = "the pool's folder: its secret, its address, its jobs and its events"
_GB = 1_000_000_000

PoolFolder = Annotated[Path, typer.Option("--pool", parser=folder_given_as("--pool"), help=_FOLDER_HELP)]


@app.command()
def serve(
    pool: PoolFolder = Path("deadpool-pool"),
    host: Annotated[str, typer.Option(help="address that machines reach the pool at")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0: the last one, or any free one")] = 0,
    tls: Annotated[str, typer.Option(help="encryption of connections to the pool, as for jobs")] = "off",
) -> None:
    """Run the pool. It decides which machine keeps trainers parked for which jobs. If it dies, machines and jobs go on
    with what they know; started again in the same folder, it knows its jobs, and machines come back by themselves."""

    from deadpool.cli.interrupts import stop_on_interrupts
    from deadpool.control.launch.folder_lock import lock_folder
    from deadpool.control.launch.run_dir import RunDir

    folder = RunDir.create(pool, "pool")
    lock = lock_folder(folder.path, "pool")
    if not folder.secret_file.exists():
        folder.make_secret("pool")
    stop_on_interrupts()
    try:
        asyncio.run(_serve(folder, host, port or _last_port(folder), tls))
    except KeyboardInterrupt:
        print("[deadpool] the pool ends; machines and jobs go on", flush=True)
    finally:
        lock.close()


def _last_port(folder: RunDir) -> int:
    """Returns the port that the folder's file names. A damaged file counts as none, and is written anew."""
    from deadpool.errors import ConfigError

    with contextlib.suppress(ConfigError):
        return folder.coordinator().port if folder.is_known else 0
    return 0


async def _serve(folder: RunDir, host: str, port: int, tls: str) -> None:
    from deadpool.cli.start.addresses import listen
    from deadpool.clusters.pool.server import PoolServer
    from deadpool.events.log import EventLog

    log = EventLog(folder.events)
    log.start()
    server = PoolServer(folder, folder.credentials(serving=True, tls=tls), log)
    try:
        address = await listen(server.start, host, port)
        folder.announce(address, tls=tls)
        print(f"[deadpool] the pool listens on {address}; its folder is {folder.path}", flush=True)
        await asyncio.Event().wait()
    finally:
        await server.close()
        log.close()


@app.command()
def join(
    pool: PoolFolder = Path("deadpool-pool"),
    at: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of the pool, where its folder is not on this machine; DEADPOOL_SECRET_FILE then "
            "names a file with the pool's secret"
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="this machine's name (default: its host name)")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            parser=folder_given_as("--folder"), help="this machine's own folder (default: deadpool-pool-NAME)"
        ),
    ] = None,
    memory_gb: Annotated[
        float,
        typer.Option(
            help="GB that parked trainers of all jobs may take here (default: all of its memory)", show_default=False
        ),
    ] = 0.0,
    while_parked: Annotated[
        str,
        typer.Option(help="command to run while no job has this machine; stopped within a second when one takes it"),
    ] = "",
) -> None:
    """Give this machine to a pool: it keeps trainers parked for the pool's jobs, and the first job that needs it takes
    it. On SIGTERM its agents leave their jobs; a job that has the machine keeps it until it gives it back."""

    from deadpool.cli.interrupts import stop_on_interrupts
    from deadpool.control.agent.machine import machine_facts
    from deadpool.control.launch.folder_lock import unusable
    from deadpool.host.private_files import make_private_folder

    own = name or socket.gethostname()
    _check_name(own)
    check_at_least(0, memory_gb=memory_gb)
    place = (folder or Path(f"deadpool-pool-{own}")).absolute()
    try:
        make_private_folder(place)
    except OSError as error:
        raise unusable("folder", place, error) from None
    memory = int(memory_gb * _GB) or machine_facts("127.0.0.1")["memory_bytes"]
    stop_on_interrupts()
    try:
        asyncio.run(_join(own, place, pool, at, memory, while_parked))
    except KeyboardInterrupt:
        print(f"[deadpool] machine {own} leaves the pool", flush=True)


async def _join(name: str, folder: Path, pool: Path, at: str | None, memory_bytes: int, command: str) -> None:
    from deadpool.cli.start.agent import addresses
    from deadpool.clusters.pool.host_process import HostProcess, PoolUpstream
    from deadpool.control.coordinator.announcement import pool_folder
    from deadpool.control.launch.folder_lock import lock_folder
    from deadpool.events.log import EventLog
    from deadpool.wire.credentials import read_credentials

    def find() -> tuple[Address, Credentials]:
        if at is not None:
            return addresses(at, "at", "the pool")[0], read_credentials()
        known = pool_folder(pool)
        return known.coordinator(), known.credentials()

    find()  # what cannot be used is refused before anything is started
    lock = lock_folder(folder, "folder")
    log = EventLog(folder / "events.jsonl")
    log.start()
    try:
        upstream = PoolUpstream(find)
        await HostProcess(name, folder, upstream, memory_bytes=memory_bytes, command=command, log=log).run()
    finally:
        log.close()
        lock.close()


@app.command("add-job", context_settings=SCRIPT_LAST)
def add_job(
    name: Annotated[str, typer.Argument(help="the job's name in this pool")],
    script: Annotated[
        list[str], typer.Argument(help="the training script and its arguments, as the job's agents run it")
    ],
    pool: PoolFolder = Path("deadpool-pool"),
    run_dir: Annotated[
        Path | None,
        typer.Option(
            parser=folder_given_as("--run-dir"),
            help="the job's run folder: it says where the coordinator is and holds the secret",
        ),
    ] = None,
    coordinators: Annotated[
        str, typer.Option(help="HOST:PORT of the job's coordinators, separated by commas, instead of --run-dir")
    ] = "",
    secret_file: Annotated[
        str, typer.Option(help="file with the job's secret, as machines of the pool name it; the pool does not read it")
    ] = "",
    priority: Annotated[int, typer.Option(help="the higher, the sooner machines park trainers for it")] = 0,
    memory_gb: Annotated[float, typer.Option(help="GB that its parked trainers take on a machine")] = 0.0,
    parked: Annotated[int, typer.Option(help="machines that keep trainers parked for it, at most; 0: all")] = 0,
    leased: Annotated[int, typer.Option(help="machines that it may have at once; 0: all")] = 0,
    option: Annotated[
        list[str] | None, typer.Option(help="a further flag of its agents (repeatable), as in --option=--rehearsals=2")
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="the script is the name of a module")] = False,
    json: Json = False,
) -> None:
    """Add a job to the pool, also a running one, or change what the pool knows of it."""
    import msgspec

    from deadpool.cli.start.run import checked_program
    from deadpool.control.coordinator.announcement import ask_pool
    from deadpool.control.launch.run_dir import RunDir
    from deadpool.errors import ConfigError
    from deadpool.protocol.messages import PoolJob

    _check_name(name)
    check_at_least(0, parked=parked, leased=leased, memory_gb=memory_gb)
    tls = "off"
    if run_dir is not None:
        job_dir = RunDir(run_dir.absolute())
        coordinators, tls = coordinators or str(job_dir.coordinator()), job_dir.tls()
        secret_file = secret_file or str(job_dir.secret_file)
    if not coordinators or not secret_file:
        raise ConfigError(
            "the job cannot be found: give its --run-dir, or --coordinators and --secret-file, before its name (what "
            "follows is the script's)"
        )
    job = PoolJob(
        name=name,
        coordinators=coordinators,
        secret_file=secret_file,
        script=tuple(checked_program(script, module=module, no_python=False)),
        folder=os.getcwd(),  # noqa: PTH109 (a string is what travels)
        priority=priority,
        memory_bytes=int(memory_gb * _GB),
        parked_most=parked,
        leased_most=leased,
        tls=tls,
        options=tuple(option or ()),
    )
    body = ask_pool(RunDir(pool), "add_job", job=msgspec.to_builtins(job))
    _print(body, json)


def _check_name(name: str) -> None:
    from deadpool.errors import ConfigError

    if not name or "/" in name or name.startswith((".", "-")):
        raise ConfigError(f"name={name!r} cannot be used: give a name that can be that of a folder")


@app.command("remove-job")
def remove_job(
    name: Annotated[str, typer.Argument(help="the job's name in this pool")],
    pool: PoolFolder = Path("deadpool-pool"),
    json: Json = False,
) -> None:
    """Stop serving a job. A machine that the job has stays with it until the job gives it back."""
    from deadpool.control.coordinator.announcement import ask_pool
    from deadpool.control.launch.run_dir import RunDir

    _print(ask_pool(RunDir(pool), "remove_job", name=name), json)


@app.command()
def status(pool: PoolFolder = Path("deadpool-pool"), json: Json = False) -> None:
    """Show machines, who has them, and which jobs they keep trainers parked for."""
    from deadpool.control.coordinator.announcement import ask_pool
    from deadpool.control.launch.run_dir import RunDir

    _print(ask_pool(RunDir(pool), "pool_status"), json)


def _print(body: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json_format.dumps(body))
        return
    for job in body["jobs"]:
        has, ready = ", ".join(job["leased"]) or "no machine", ", ".join(job["ready"]) or "none"
        print(f"job {job['name']}, priority {job['priority']}: has {has}; ready for it: {ready}")
    for host in body["hosts"]:
        parked = ", ".join(f"{job}{'' if job in host['ready'] else ' (not ready)'}" for job in host["parked"])
        state = f"leased to {host['leased_to']}" if host["leased_to"] else f"free, parked for {parked or 'no job'}"
        work = "; its command runs" if host["work"] == "running" else ""
        print(f"machine {host['host']}: {state}{work}")
    for refused in body["refused"]:
        print(f"machine {refused['host']}: a second one is REFUSED, {refused['reason']}")
    if not body["hosts"]:
        print("no machine has joined: start deadpool pool join on one")
