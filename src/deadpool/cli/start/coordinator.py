"""`deadpool coordinator`: the process that decides which node holds which ranks and copies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.arguments import folder_given_as
from deadpool.cli.start.options import with_settings
from deadpool.cli.words import tell_misspelt_variables
from deadpool.config.values import COORDINATOR
from deadpool.control.console import print_line, print_record

if TYPE_CHECKING:
    from deadpool.config.job_config import JobConfig
    from deadpool.control.coordinator.coordinator import CoordinatorServer, JobOutcome
    from deadpool.control.launch.run_dir import RunDir
    from deadpool.control.shells import CoordinatorShell
    from deadpool.events.event import Event
    from deadpool.host.private_files import ProcessLock
    from deadpool.protocol.causes import AdaptiveBounds
    from deadpool.protocol.coordinator.leadership.leadership import Leadership
    from deadpool.protocol.identity import Address
    from deadpool.views.metrics.endpoint import Endpoint, JobCollector

_PAGE_NICE = 5
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@with_settings(COORDINATOR)
def coordinator(
    run_dir: Annotated[
        Path, typer.Option(parser=folder_given_as("--run-dir"), help="folder for the secret, events and logs")
    ],
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings below")] = None,
    quiet: Annotated[bool, typer.Option(help="do not print events")] = False,
    lock: Annotated[int | None, typer.Option(hidden=True, help="the lock of the folder, which a launcher has")] = None,
    again: Annotated[bool, typer.Option("--again", hidden=True, help="the job has begun already")] = False,
    secret_from: Annotated[int | None, typer.Option(hidden=True, help="a descriptor that has the job's secret")] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Coordinate a job whose nodes join with `deadpool agent --join`. Exits 0 if the job completed, else 1.

    Started again with the same folder it takes over the running job; in the folder of a job that has ended it begins
    a new one. With --coordinators the same command is started on
    several machines: the first coordinator begins, and nodes that lose it turn to the next one."""
    from deadpool.cli.start.addresses import at_interface
    from deadpool.config.resolution import resolve
    from deadpool.control.launch.run_dir import RunDir, put_ended_job_away
    from deadpool.control.loops import serve
    from deadpool.wire.credentials import read_handed_over

    tell_misspelt_variables()
    settings = at_interface(resolve(flags, file=config, settled=True))
    # One that is started again leads without its folder, and must not put another one in its place.
    folder = RunDir(run_dir) if again else RunDir.create(run_dir)
    locks: list[ProcessLock] = []
    if lock is None:
        locks = _lock(folder, settings, again=again)  # they end with this process
    if lock is None and not again:
        put_ended_job_away(folder)
    secret = read_handed_over(secret_from) if secret_from is not None else None
    begins = not again and founds(settings, folder)
    try:
        outcome = serve(coordinate(settings, folder, quiet=quiet, founds=begins, secret=secret))
    finally:
        for each in locks:
            each.close()
    raise typer.Exit(1 if outcome.failed else 0)


def _lock(folder: RunDir, config: JobConfig, *, again: bool) -> list[ProcessLock]:
    """Coordinators of one job may share a folder, each at its own place. No other job begins there meanwhile."""
    from deadpool.control.launch.folder_lock import lock_folder, lock_folder_again
    from deadpool.errors import ConfigError

    take = lock_folder_again if again else lock_folder
    taken = [take(folder.path, "run_dir", shared=bool(config.coordinators))]
    if config.coordinators:
        try:
            taken.append(take(folder.path, "run_dir", name=f"lock-{config.host}-{config.port}"))
        except ConfigError:
            for each in filter(None, taken):
                each.close()
            raise
    return [each for each in taken if each is not None]


def founds(config: JobConfig, folder: RunDir) -> bool:
    """Whether this process begins the job, as far as its folder knows."""
    places = config.coordinator_places
    return not folder.is_known and (not places or places[0] == f"{config.host}:{config.port}")


async def coordinate(
    config: JobConfig,
    folder: RunDir,
    *,
    quiet: bool,
    founds: bool,
    secret: bytes | None = None,
    stops_on: tuple[signal.Signals, ...] = STOP_SIGNALS,
) -> JobOutcome:
    """Runs until the job has ended, or until a standby is not needed any more. The job ends on the signals of
    `stops_on`. `secret` is the job's, if the folder is not to be asked for it."""
    from deadpool.cli.start.addresses import listen
    from deadpool.config.orders import parse_order
    from deadpool.control.coordinator.announcement import Announcement
    from deadpool.control.coordinator.coordinator import CoordinatorServer
    from deadpool.control.coordinator.other_coordinators import StandbyWatch, dismiss
    from deadpool.control.hooks.event_hooks import EventHooks
    from deadpool.control.shell_registry import coordinator_shells
    from deadpool.control.shells import CoordinatorAccess
    from deadpool.events.log import EventLog
    from deadpool.views.metrics.endpoint import Endpoint, JobCollector, check_package
    from deadpool.wire.credentials import secret_is_given

    if founds:
        check_package(config.metrics_port)
        config.check_webhooks()
    places = _addresses_of_all(config)
    own = f"{config.host}:{config.port}"
    if founds and not secret_is_given() and not folder.secret_file.exists():
        folder.make_secret()
    credentials = folder.credentials(serving=True, tls=config.tls, secret=secret)
    secret_is_in_folder = secret is not None or folder.secret_file.exists()
    log = EventLog(folder.events)
    log.start()
    orders = [parse_order(text) for text in config.faults]
    features = coordinator_shells(CoordinatorAccess(config=config, secret=credentials.secret, founds=founds))
    noted: list[Event] = []
    begins_with = [input for each in features for input in await asyncio.to_thread(each.begin, noted.append)]
    leadership = _leadership(config, founds, features)
    metrics = Endpoint(config.metrics_host, config.metrics_port)
    loop = asyncio.get_running_loop()
    hooks = EventHooks(
        config.hook_rules(),
        run_dir=folder.path,
        tell=lambda event: _tell(loop, server, event),
    )

    pages: list[subprocess.Popen[bytes]] = []

    def became_leader() -> None:
        facts = _told_of(config)
        announcement = Announcement(
            folder,
            address,
            facts,
            is_leader=lambda: leadership.is_leader,
            tell=server.log_event,
            secret=credentials.secret if secret_is_in_folder else None,
        )
        server.commands.announced = announcement.storage
        announcement.make()
        if not quiet:
            _say_timeouts(config)
        if config.dashboard and not pages:
            pages.append(_start_dashboard(config, folder))

    server = CoordinatorServer(
        leadership,
        credentials=credentials,
        log=log,
        orders=orders,
        became_leader=became_leader,
        heartbeat_s=config.heartbeat_s,
        founds=founds,
        heard=hooks.offer,
        print_events=not quiet,
        print_json=config.log_format == "json",
        features=features,
    )
    for sig in stops_on:
        loop.add_signal_handler(sig, server.stop, f"coordinator got {sig.name}")
    for asks, input in [item for each in features for item in each.asked_by().items()]:
        loop.add_signal_handler(asks, server.tell, input)
    address = await listen(server.start, config.host, config.port)
    if not quiet:
        _say(config, f"the coordinator listens on {address}, TLS {config.tls}")
    others = [place for place in places if str(place) != own]
    standbys = StandbyWatch(others, credentials, is_leader=lambda: leadership.is_leader, tell=server.log_event)
    server.commands.standbys = standbys.facts
    collector = JobCollector(folder.events, lambda: leadership.is_leader, log.unwritten, lambda: standbys.left)
    _serve_metrics(metrics, collector, server)
    hooks.start()
    for event in noted:
        server.log_event(event)
    for input in begins_with:
        server.tell(input)
    server.open()
    watching = loop.create_task(standbys.run())
    try:
        outcome = await server.wait()
        if outcome.of_leader:
            await dismiss(others, credentials, outcome.reason)
        return outcome
    finally:
        watching.cancel()
        for page in pages:
            page.terminate()
            page.wait()
        await server.close()
        await asyncio.to_thread(hooks.close)
        await asyncio.to_thread(metrics.close)
        if lost := log.close():
            _say(config, f"{lost} events are lost: the disk of {folder.path} did not take them")


def _serve_metrics(metrics: Endpoint, collector: JobCollector, server: CoordinatorServer) -> None:
    from deadpool.events.event import Event

    if (failure := metrics.start(collector)) is not None:
        server.log_event(Event(what="metrics_failed", detail={"reason": failure}))


def _tell(loop: asyncio.AbstractEventLoop, server: CoordinatorServer, event: Event) -> None:
    """Logs an event from a thread of a hook. A hook that failed only after the end tells nobody."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(server.log_event, event)


def _start_dashboard(config: JobConfig, folder: RunDir) -> subprocess.Popen[bytes]:
    """In a process of its own, of low priority, so that whoever looks at the job does not hold up a recovery. It ends
    with this one."""
    from deadpool.host.child_processes import end_with_parent

    host, _, port = config.dashboard_at.rpartition(":")
    command = [sys.executable, "-m", "deadpool.cli.main", "show", "dashboard", str(folder.path)]
    tie_to_parent = end_with_parent(signal.SIGTERM)

    def begin() -> None:
        tie_to_parent()
        os.nice(_PAGE_NICE)

    return subprocess.Popen([*command, f"--host={host}", f"--port={port}"], stdin=subprocess.DEVNULL, preexec_fn=begin)


def _say_timeouts(config: JobConfig) -> None:
    from deadpool.config.timeouts import table

    for name, value, what_for in table(config.node_timeout_s, config.derived_timeouts, config.hang_timeout_s):
        _say(config, f"timeout: {name:12} {value:>8}  {what_for}")


def _say(config: JobConfig, text: str) -> None:
    if config.log_format == "json":
        print_record(process="coordinator", text=text)
    else:
        print_line(f"[deadpool] {text}")


def _told_of(config: JobConfig) -> dict[str, Any]:
    """What whoever reads about the job may know."""
    layout = {"nodes": config.nodes, "nproc_per_node": config.nproc_per_node}
    return {"tls": config.tls, **layout, "settings": config.told(), "versions": _versions()}


def _versions() -> dict[str, str]:
    """Returns the versions on this machine, for a report of the job. torch is not imported for that."""
    from importlib import metadata

    from deadpool import __version__

    with contextlib.suppress(metadata.PackageNotFoundError):
        return {"deadpool": __version__, "python": platform.python_version(), "torch": metadata.version("torch")}
    return {"deadpool": __version__, "python": platform.python_version()}


def _addresses_of_all(config: JobConfig) -> tuple[Address, ...]:
    from deadpool.errors import ConfigError
    from deadpool.protocol.identity import Address

    places = config.coordinator_places
    own = f"{config.host}:{config.port}"
    if places and own not in places:
        raise ConfigError(
            f"coordinators={config.coordinators!r} cannot be used: {own} is not among them. Give this process "
            "the --host and --port of one of them"
        )
    return tuple(Address.parse(place) for place in places)


def check_installed(config: JobConfig) -> None:
    """A job that asks for groups needs the feature that makes them."""
    from deadpool.errors import ConfigError
    from deadpool.protocol.features import registry

    asked = {"protect": config.scheme, "protect_at_most": config.coded_bound}
    for name, scheme in asked.items():
        if scheme is not None and scheme.in_groups and (refusal := registry.redundancy().refusal(scheme)) is not None:
            raise ConfigError(f"{name}={getattr(config, name)!r} cannot be used: {refusal}")


def _adaptive(config: JobConfig) -> AdaptiveBounds | None:
    from deadpool.protocol.causes import AdaptiveBounds

    if (bounds := config.protection_bounds()) is None:
        return None
    return AdaptiveBounds(
        copies_at_most=int(bounds["copies"]),
        every_at_most=int(bounds["every"]),
        memory_share=bounds["memory"],
        in_groups=config.coded_bound,
        evict_ill=config.evict_ill,
        dwell_s=config.protect_dwell_s,
    )


def _leadership(config: JobConfig, founds: bool, features: Sequence[CoordinatorShell]) -> Leadership:
    from msgspec import structs

    from deadpool.config.timeouts import fence_s, return_s
    from deadpool.protocol.coordinator.leadership.leadership import Leadership
    from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Deadlines, FaultLimit
    from deadpool.protocol.identity import LEFT_OUT_OF, Layout, Schedule
    from deadpool.protocol.messages import Settings

    check_installed(config)
    settings = Settings(
        layout=Layout(positions=config.nodes, per_node=config.nproc_per_node, holders=config.holders),
        slots=config.slots,
        heartbeat_s=config.heartbeat_s,
        unwind_s=config.unwind_timeout_s,
        in_place=config.in_place,
        audit=config.rehearse_recovery,
        on_inexact=config.on_inexact,
        on_corruption=config.on_corruption,
        audit_every=config.audit_every,
        audit_spares_every=config.audit_spares_every,
        drills=config.drills,
        overhead_budget=config.overhead_budget,
        set_aside_gb=config.set_aside_gb,
        coordinators=_addresses_of_all(config),
        silence_s=config.node_timeout_s,
        isolation_s=config.isolation_timeout_s,
        replace_stragglers=config.replace_stragglers,
        adaptive=_adaptive(config),
        without_spare=config.without_spare,
    )
    for feature in features:
        settings = structs.replace(settings, **feature.settings())
    deadlines = Deadlines(
        node_s=config.node_timeout_s,
        fence_s=fence_s(config.node_timeout_s, config.unwind_timeout_s),
        prepare_s=config.prepare_timeout_s,
        connect_s=config.connect_timeout_s,
        spare_wait_s=config.spare_wait_s,
        return_s=return_s(config.node_timeout_s),
        hang_s=config.hang_timeout_s,
    )
    fault_limit = FaultLimit(faults=config.quarantine_after, within_s=config.quarantine_window_s)
    schedule = Schedule(every=config.capture_every, left_out_of=LEFT_OUT_OF if config.overhead_budget > 0 else 0)
    coordinator_config = CoordinatorConfig(
        settings=settings, deadlines=deadlines, schedule=schedule, scheme=config.scheme, fault_limit=fault_limit
    )
    # A process that is started again has another name.
    name = f"{config.host}:{config.port}/{secrets.token_hex(4)}"
    return Leadership(coordinator_config, name=name, founds=founds)
