"""`deadpool doctor`: looks for what would stop a job or slow it down."""

from __future__ import annotations

import asyncio
import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deadpool.cli.arguments import Json, check_at_least, check_more_than
from deadpool.errors import ConfigError
from deadpool.protocol.identity import Address

if TYPE_CHECKING:
    from deadpool.doctor.examination import Options
    from deadpool.doctor.finding import Result
    from deadpool.wire.credentials import Credentials


def doctor(
    run_dir: Annotated[
        str | None, typer.Option(metavar="PATH", help="folder that the job will write to, or writes to")
    ] = None,
    arena: Annotated[str, typer.Option(metavar="SIZE", help="memory for snapshots per node, as in 63GB")] = "0",
    gpus: Annotated[int | None, typer.Option(help="GPUs that a node must have")] = None,
    rdma: Annotated[bool, typer.Option("--rdma", help="the job uses InfiniBand or RoCE")] = False,
    end_time: Annotated[
        float | None, typer.Option(help="when the allocation ends, in seconds since 1970 (default: as Slurm says)")
    ] = None,
    least_time_s: Annotated[float, typer.Option(help="seconds that the allocation must last")] = 600.0,
    import_torch: Annotated[bool, typer.Option("--import-torch", help="import torch too, which takes seconds")] = False,
    join: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="the coordinator of a job that this machine is to join")
    ] = None,
    agents: Annotated[
        bool, typer.Option("--agents", help="examine the nodes of the job in --run-dir (default: the newest one here)")
    ] = False,
    rendezvous: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="find the other nodes there; it is one of them")
    ] = None,
    nodes: Annotated[int, typer.Option(help="how many nodes are examined together, this one included")] = 0,
    wait_s: Annotated[float, typer.Option(help="seconds to wait for the other nodes")] = 30.0,
    least_gbps: Annotated[float, typer.Option(help="GB/s that a link must carry")] = 0.1,
    host: Annotated[str | None, typer.Option(help="address that other nodes reach this one at")] = None,
    interface: Annotated[str | None, typer.Option(help="network interface whose address that is")] = None,
    tls: Annotated[
        str | None, typer.Option(help="as the job's agents use it (default: DEADPOOL_TLS, else off)")
    ] = None,
    name: Annotated[str | None, typer.Option(help="this node's name (default: its host name)")] = None,
    json: Json = False,
    timeout_s: Annotated[float, typer.Option(help="seconds after which a check that does not end is given up")] = 5.0,
) -> None:
    """Look for what would stop a job or slow it down, on this node or on all nodes together.

    Exits 0 if nothing was found, 1 if something was, 2 if it could not look. It never waits for anything without a
    deadline: use it in a prolog, as Slurm's HealthCheckProgram, or before you start a job."""
    from deadpool.doctor.examination import Options, examine, parse_size
    from deadpool.doctor.finding import Result

    check_more_than(0, timeout_s=timeout_s, wait_s=wait_s)
    check_at_least(0, least_gbps=least_gbps, least_time_s=least_time_s, gpus=gpus)
    options = Options(
        run_dir=Path(run_dir) if run_dir is not None else None,  # not typer's: that one looks at it, and may hang
        arena_bytes=parse_size(arena, "arena"),
        gpus=gpus,
        rdma=rdma,
        end_time=end_time,
        least_time_s=least_time_s,
        import_torch=import_torch,
        timeout_s=timeout_s,
    )
    if (join is not None) + (rendezvous is not None) + agents > 1:
        raise ConfigError("--join, --rendezvous and --agents exclude each other: give one of them")
    own = _Own(name=name, host=host, interface=interface, tls=tls)
    if rendezvous is not None:
        result, code = _examine_together(options, own, _place(rendezvous, nodes), nodes, wait_s, least_gbps)
    else:
        result = (
            _agents(options.run_dir)
            if agents
            else _join(options, own, join)
            if join
            else Result.of([examine(options, name)])
        )
        code = int(result.code)
    _print(result, json)
    raise typer.Exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """How this machine is called and reached."""

    name: str | None
    host: str | None
    interface: str | None
    tls: str | None

    def address(self, towards: Address) -> str:
        from deadpool.cli.start.addresses import own_address

        return own_address(self.host, self.interface, towards)

    def credentials(self) -> Credentials:
        from deadpool.wire.credentials import read_credentials

        return read_credentials(serving=True, tls=self.tls)


def _agents(run_dir: Path | None) -> Result:
    from deadpool.cli.job_client import find_run_dir
    from deadpool.doctor.job_check import check_with_job

    folder = find_run_dir(run_dir)
    return asyncio.run(check_with_job([folder.coordinator()], folder.credentials(), None))


def _join(options: Options, own: _Own, join: str) -> Result:
    from deadpool.cli.start.agent import addresses
    from deadpool.doctor.examination import examine
    from deadpool.doctor.job_check import JoiningMachine, check_with_job

    coordinators, credentials = addresses(join), own.credentials()
    joining = JoiningMachine(report=examine(options, own.name), host=own.address(coordinators[0]))
    return asyncio.run(check_with_job(coordinators, credentials, joining))


def _place(rendezvous: str, nodes: int) -> Address:
    if nodes < 1:
        raise ConfigError(
            f"nodes={nodes} cannot be used with --rendezvous: say how many nodes there are, this one included"
        )
    try:
        return Address.parse(rendezvous)
    except ValueError:
        raise ConfigError(f"rendezvous={rendezvous!r} cannot be used: give HOST:PORT of one of the nodes") from None


def _examine_together(
    options: Options, own: _Own, place: Address, nodes: int, wait_s: float, least_gbps: float
) -> tuple[Result | None, int]:
    from deadpool.doctor.examination import examine
    from deadpool.doctor.joint_check import examine_together

    credentials, host = own.credentials(), own.address(place)
    report = examine(options, own.name)
    examined = examine_together(
        report, place, count=nodes, host=host, credentials=credentials, wait_s=wait_s, least_gbps=least_gbps
    )
    return asyncio.run(examined)


def _print(result: Result | None, as_json: bool) -> None:
    """A node leaves it to the one that asked the others to tell: under srun all write to one output."""
    if result is None:
        return
    if as_json:
        print(json_format.dumps(result.to_json(), indent=2))
        return
    from rich.console import Console

    from deadpool.doctor.finding import show

    show(result, Console())
