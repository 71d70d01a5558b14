"""`deadpool doctor`: looks for what would stop a job or slow it down."""

from __future__ import annotations

import asyncio
import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deadpool.errors import ConfigError
from deadpool.protocol.topology import Address

if TYPE_CHECKING:
    from deadpool.clusters.doctor.finding import Report
    from deadpool.clusters.doctor.table import Result


def doctor(
    run_dir: Annotated[
        Path | None, typer.Option(help="the folder that the job will write to; with a job in it: ask its agents")
    ] = None,
    arena: Annotated[str, typer.Option(metavar="SIZE", help="memory for snapshots per node, as in 63GB")] = "0",
    gpus: Annotated[int | None, typer.Option(help="GPUs that a node must have")] = None,
    rdma: Annotated[bool, typer.Option("--rdma", help="the job uses InfiniBand or RoCE")] = False,
    end_time: Annotated[
        float | None, typer.Option(help="when the allocation ends, in seconds since 1970 (default: as Slurm says)")
    ] = None,
    least_time_s: Annotated[float, typer.Option(help="seconds that the allocation must last")] = 600.0,
    import_torch: Annotated[bool, typer.Option("--import-torch", help="import torch too, which takes seconds")] = False,
    meet: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="meet the other nodes there; it is one of them")
    ] = None,
    nodes: Annotated[int, typer.Option(help="how many nodes meet, this one included")] = 0,
    wait_s: Annotated[float, typer.Option(help="seconds to wait for the other nodes")] = 30.0,
    least_gbps: Annotated[float, typer.Option(help="GB/s that a link must carry")] = 0.1,
    host: Annotated[str | None, typer.Option(help="address that other nodes reach this one at")] = None,
    interface: Annotated[str | None, typer.Option(help="network interface whose address that is")] = None,
    tls: Annotated[
        str | None, typer.Option(help="as the job's agents use it (default: DEADPOOL_TLS, else off)")
    ] = None,
    name: Annotated[str | None, typer.Option(help="this node's name (default: its host name)")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    timeout_s: Annotated[float, typer.Option(help="seconds after which a check that does not end is given up")] = 5.0,
) -> None:
    """Look for what would stop a job or slow it down, on this node or on all nodes together.

    Exits 0 if nothing was found, 1 if something was, 2 if it could not look. It never waits for anything without a
    deadline: use it in a prolog, as Slurm's HealthCheckProgram, or before you start a job."""
    from deadpool.cli.addresses import own_address
    from deadpool.clusters.doctor.examination import examine
    from deadpool.clusters.doctor.options import Options, parse_size
    from deadpool.clusters.doctor.table import Result

    options = Options(
        run_dir=run_dir,
        arena_bytes=parse_size(arena, "arena"),
        gpus=gpus,
        rdma=rdma,
        end_time=end_time,
        least_time_s=least_time_s,
        import_torch=import_torch,
        timeout_s=timeout_s,
    )
    place = _place(meet, nodes)
    report = examine(options, name)
    if place is not None:
        result, code = _meet(report, place, nodes, wait_s, least_gbps, own_address(host, interface, place), tls)
    else:
        result = Result.of([report])
        code = int(result.code)
    _print(result, json)
    raise typer.Exit(code)


def _place(meet: str | None, nodes: int) -> Address | None:
    if meet is None:
        return None
    if nodes < 1:
        raise ConfigError("nodes is missing: say with --nodes how many nodes meet")
    try:
        return Address.parse(meet)
    except ValueError:
        raise ConfigError(f"meet={meet!r} cannot be used: give HOST:PORT of one of the nodes") from None


def _meet(
    report: Report, place: Address, nodes: int, wait_s: float, least_gbps: float, host: str, tls: str | None
) -> tuple[Result, int]:
    from deadpool.clusters.doctor.gathering import gather
    from deadpool.wire.credentials import read_credentials

    credentials = read_credentials(serving=True, tls=tls)
    return asyncio.run(
        gather(
            report,
            place,
            count=nodes,
            host=host,
            credentials=credentials,
            wait_s=wait_s,
            least_gbps=least_gbps,
        )
    )


def _print(result: Result, as_json: bool) -> None:
    if as_json:
        print(json_format.dumps(result.to_json(), indent=2))
        return
    from rich.console import Console

    from deadpool.clusters.doctor.table import show

    show(result, Console())
