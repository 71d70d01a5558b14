"""`deadpool run`: a whole job on this machine."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from deadpool.cli.program import MODULE_HELP, NO_PYTHON_HELP, PRELOAD_HELP, SCRIPT_HELP, checked_program
from deadpool.fault_orders import ORDER_HELP

CODE_INTERRUPTED = 130


def run(
    script: Annotated[list[str], typer.Argument(help=SCRIPT_HELP)],
    module: Annotated[bool, typer.Option("--module", "-m", help=MODULE_HELP)] = False,
    no_python: Annotated[bool, typer.Option("--no-python", help=NO_PYTHON_HELP)] = False,
    preload: Annotated[list[str] | None, typer.Option(metavar="PACKAGE", help=PRELOAD_HELP)] = None,
    nodes: Annotated[int | None, typer.Option(help="nodes that train")] = None,
    spares: Annotated[int | None, typer.Option(help="warm spare nodes")] = None,
    nproc_per_node: Annotated[int | None, typer.Option(help="trainers per node")] = None,
    holders: Annotated[int | None, typer.Option(help="nodes that keep a copy of each rank's snapshots")] = None,
    standby: Annotated[int | None, typer.Option(help="extra trainers parked on every node")] = None,
    rehearsals: Annotated[int | None, typer.Option(help="trainers parked per seat of a spare node")] = None,
    slots: Annotated[int | None, typer.Option(help="snapshots kept per rank and side")] = None,
    capture_every: Annotated[int | None, typer.Option(help="steps between snapshots")] = None,
    overhead_budget: Annotated[
        float | None, typer.Option(help="share of the step time that snapshots may cost; 0: no limit, none is left out")
    ] = None,
    node_timeout_s: Annotated[
        float | None,
        typer.Option("--node-timeout", "--node-timeout-s", help="silence after which a node is taken for dead"),
    ] = None,
    quarantine_after: Annotated[
        int | None, typer.Option(help="faults of one node, after which its ranks go to a spare; 0: never")
    ] = None,
    quarantine_window_s: Annotated[float | None, typer.Option(help="within which they count")] = None,
    standby_coordinators: Annotated[
        int | None, typer.Option(help="coordinators that stand by; else one that is killed is started again")
    ] = None,
    spare_wait_s: Annotated[float | None, typer.Option(help="how long to wait for a spare when none is left")] = None,
    bulk_nice: Annotated[int | None, typer.Option(help="niceness of the agents' threads that move copies")] = None,
    bulk_cpus: Annotated[str | None, typer.Option(help="CPUs that these threads keep to, as in 0-3,8")] = None,
    hang_timeout_s: Annotated[
        float | None,
        typer.Option(help="time without a step after which the job hangs; 0: 10 slow steps, at least 60 s"),
    ] = None,
    replace_stragglers: Annotated[
        bool | None, typer.Option(help="drain a node that is slow all the time, without being asked")
    ] = None,
    fault: Annotated[list[str] | None, typer.Option(help=f"a fault to inject (repeatable), {ORDER_HELP}")] = None,
    in_place: Annotated[
        str | None, typer.Option(help="survivors keep their processes: auto (where this torch is known), always, never")
    ] = None,
    interface: Annotated[str | None, typer.Option(help="listen on this network interface; default: loopback")] = None,
    tls: Annotated[
        str | None, typer.Option(help="off, ephemeral, or a folder with cert.pem, key.pem and ca.pem; default: off")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help='TOML file: [racks] with lists of nodes, as in r0 = ["n0", "n1"]')
    ] = None,
    config: Annotated[Path | None, typer.Option(help="a TOML file with any of these settings")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="folder for events and logs")] = None,
) -> None:
    """Start a coordinator and one agent per node here, and train until the script has ended on every rank."""
    from deadpool.cli.addresses import at_interface
    from deadpool.config import resolve
    from deadpool.control.launcher import LocalJob, new_run_dir, running
    from deadpool.control.run_dir import RunDir
    from deadpool.wire.tls import load_tls

    flags = {name: value for name, value in locals().items() if name in _SETTINGS}
    flags["faults"] = tuple(fault) if fault else None
    settings = resolve(flags, file=config)
    program = checked_program(script, module=module, no_python=no_python)
    settings.racks()  # refused before anything starts, as are the next two
    settings = at_interface(settings)
    load_tls(settings.tls, serving=True)
    folder = RunDir.create(run_dir) if run_dir else new_run_dir()
    print(f"[deadpool] run folder: {folder.path}", flush=True)
    stop_on(signal.SIGTERM, signal.SIGINT)
    with running(LocalJob(settings, folder, program, preload=tuple(preload or ()))) as job:
        try:
            code = job.wait()
        except KeyboardInterrupt:
            print("[deadpool] interrupted: ending everything", flush=True)
            code = CODE_INTERRUPTED
    raise typer.Exit(code)


_SETTINGS = (
    "nodes", "spares", "nproc_per_node", "holders", "standby", "rehearsals", "slots", "capture_every",
    "overhead_budget", "node_timeout_s", "spare_wait_s", "hang_timeout_s", "bulk_nice", "bulk_cpus", "in_place",
    "topology", "interface", "tls", "standby_coordinators", "quarantine_after", "quarantine_window_s",
    "replace_stragglers",
)  # fmt: skip


def stop_on(*sigs: signal.Signals) -> None:
    """Both end through the `finally`s that clean up. SIGINT too: a background job is started with it ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for sig in sigs:
        signal.signal(sig, interrupt)
