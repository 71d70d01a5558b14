"""`deadpool coordinator`: the one process that knows who holds what."""

from __future__ import annotations

import asyncio
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deadpool.strikes import ORDER_HELP

_END_S = 10.0  # for a killed process to be gone: its device and its pinned memory are given back first

if TYPE_CHECKING:
    from deadpool.config import JobConfig
    from deadpool.control.run_dir import RunDir
    from deadpool.protocol.office import Office
    from deadpool.protocol.topology import Address


def coordinator(
    nodes: Annotated[int, typer.Option(help="nodes that train")],
    run_dir: Annotated[Path, typer.Option(help="folder for the secret, events and logs")],
    nproc_per_node: Annotated[int | None, typer.Option(help="trainers per node")] = None,
    holders: Annotated[int | None, typer.Option(help="nodes that keep a copy of each rank's snapshots")] = None,
    slots: Annotated[int | None, typer.Option(help="snapshots kept per rank and side")] = None,
    capture_every: Annotated[int | None, typer.Option(help="steps between snapshots")] = None,
    overhead_budget: Annotated[
        float | None, typer.Option(help="share of the step time that snapshots may cost; 0: no limit, none is left out")
    ] = None,
    node_timeout_s: Annotated[float | None, typer.Option(help="silence after which a node is taken for dead")] = None,
    unwind_timeout_s: Annotated[float | None, typer.Option(help="for a trainer to come to rest")] = None,
    prepare_timeout_s: Annotated[float | None, typer.Option(help="for a newcomer to build and load")] = None,
    connect_timeout_s: Annotated[float | None, typer.Option(help="for groups to be made anew")] = None,
    spare_wait_s: Annotated[float | None, typer.Option(help="how long to wait for a spare")] = None,
    hang_timeout_s: Annotated[
        float | None,
        typer.Option(help="time without a step after which the job hangs; 0: 10 slow steps, at least 60 s"),
    ] = None,
    in_place: Annotated[
        str | None, typer.Option(help="survivors keep their processes: auto (where this torch is known), always, never")
    ] = None,
    host: Annotated[str | None, typer.Option(help="address to listen on; default: 127.0.0.1")] = None,
    interface: Annotated[str | None, typer.Option(help="network interface whose address to listen on")] = None,
    tls: Annotated[
        str | None, typer.Option(help="off, ephemeral, or a folder with cert.pem, key.pem and ca.pem; default: off")
    ] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on; 0: any free one")] = None,
    coordinators: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of all coordinators of this job, this one among them; the others stand by"),
    ] = None,
    isolation_timeout_s: Annotated[
        float | None, typer.Option(help="without any coordinator, after which a node ends its trainers")
    ] = None,
    fault: Annotated[list[str] | None, typer.Option(help=f"a fault to inject (repeatable), {ORDER_HELP}")] = None,
    config: Annotated[Path | None, typer.Option(help="a TOML file with any of these settings")] = None,
    quiet: Annotated[bool, typer.Option(help="do not narrate events")] = False,
) -> None:
    """Coordinate a job whose nodes join with `deadpool agent --join`. Exits 0 if the job completed, else 1.

    Started again with the same folder it takes the running job over. With --coordinators the same can be started on
    several machines: the first one begins, and nodes that lose it turn to the next."""
    from deadpool.cli.addresses import at_interface
    from deadpool.config import resolve
    from deadpool.control.run_dir import RunDir

    flags = {name: value for name, value in locals().items() if name in _SETTINGS}
    flags["faults"] = tuple(fault) if fault else None
    settings = at_interface(resolve(flags, file=config))
    failed = asyncio.run(_serve(settings, RunDir.create(run_dir), quiet))
    raise typer.Exit(1 if failed else 0)


_SETTINGS = (
    "nodes", "nproc_per_node", "holders", "slots", "capture_every", "overhead_budget", "node_timeout_s",
    "unwind_timeout_s", "prepare_timeout_s", "connect_timeout_s", "spare_wait_s", "hang_timeout_s", "in_place", "host",
    "interface", "port", "tls", "coordinators", "isolation_timeout_s",
)  # fmt: skip


async def _serve(config: JobConfig, folder: RunDir, quiet: bool) -> bool:
    from deadpool.control.colleagues import dismiss
    from deadpool.control.coordinator import CoordinatorServer
    from deadpool.events import EventLog
    from deadpool.strikes import parse_order
    from deadpool.wire.secret import secret_is_given

    places = _places(config)
    own = f"{config.host}:{config.port}"
    founds = not folder.is_known and (not places or str(places[0]) == own)
    if not secret_is_given() and not folder.secret_file.exists():
        folder.make_secret()
    credentials = folder.credentials(serving=True, tls=config.tls)
    log = EventLog(folder.events)
    log.start()
    orders = [parse_order(text) for text in config.faults]
    server = CoordinatorServer(
        _office(config, founds),
        credentials=credentials,
        log=log,
        orders=orders,
        took_office=lambda: folder.announce(
            address, nodes=config.nodes, nproc_per_node=config.nproc_per_node, tls=config.tls
        ),
        narrate=not quiet,
    )
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, server.stop, f"coordinator got {sig.name}")
    address = await server.start(config.host, config.port)
    server.open()
    if not quiet:
        print(f"[deadpool] the coordinator listens on {address}, TLS {config.tls}", flush=True)
    try:
        outcome = await server.wait()
        if outcome.in_office:
            await dismiss([place for place in places if str(place) != own], credentials, outcome.reason)
        return outcome.failed
    finally:
        await server.close()
        log.close()


def _places(config: JobConfig) -> tuple[Address, ...]:
    from deadpool.errors import ConfigError
    from deadpool.protocol.topology import Address

    places = config.coordinator_places
    own = f"{config.host}:{config.port}"
    if places and own not in places:
        raise ConfigError(f"coordinators={config.coordinators!r} cannot be used: give {own}, this one, among them")
    return tuple(Address.parse(place) for place in places)


def _office(config: JobConfig, founds: bool) -> Office:
    from deadpool.protocol.deadlines import Deadlines
    from deadpool.protocol.messages import Settings
    from deadpool.protocol.office import Charter, Office
    from deadpool.protocol.topology import Layout, Schedule

    settings = Settings(
        layout=Layout(positions=config.nodes, per_node=config.nproc_per_node, holders=config.holders),
        slots=config.slots,
        heartbeat_s=config.heartbeat_s,
        unwind_s=config.unwind_timeout_s,
        in_place=config.in_place,
        overhead_budget=config.overhead_budget,
        coordinators=_places(config),
        silence_s=config.node_timeout_s,
        isolation_s=config.isolation_timeout_s,
    )
    deadlines = Deadlines(
        node_s=config.node_timeout_s,
        fence_s=config.unwind_timeout_s + config.node_timeout_s + _END_S,
        prepare_s=config.prepare_timeout_s,
        connect_s=config.connect_timeout_s,
        spare_wait_s=config.spare_wait_s,
        hang_s=config.hang_timeout_s,
    )
    charter = Charter(settings=settings, deadlines=deadlines, schedule=Schedule(every=config.capture_every))
    name = (
        f"{config.host}:{config.port}/{secrets.token_hex(4)}"  # of this process: one that is started again is another
    )
    return Office(charter, name=name, founds=founds)
