"""`deadpool status`: a running job at a glance."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer


def status(
    run_dir: Annotated[Path | None, typer.Option(help="the job's run folder; default: the newest one here")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show nodes, ranks, generation, step, watermark, the lag of copies, and what snapshots cost each rank."""
    from deadpool.cli.job_client import ask, find_run_dir

    body = ask(find_run_dir(run_dir), "status")
    if json:
        print(json_format.dumps(body, indent=2))
    else:
        _print(body)


def _print(body: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    shield = "protected" if body["protected"] else "NOT PROTECTED YET"
    console.print(f"[bold]{body['phase']}[/bold], generation {body['generation']}, step {body['step']}, {shield}")
    console.print(f"watermark {body['watermark']} (lag {body['lag_steps']} steps), last cause {body['cause']}")
    console.print(_interval(body["interval"]))
    for line in _warnings(body):
        console.print(line)
    if body["same_rack"]:
        console.print(f"[bold]copies in their own rack[/bold]: of positions {', '.join(map(str, body['same_rack']))}")
    for node in body["nodes"]:
        if node["quarantined"]:
            console.print(f"[bold]{node['node']} is quarantined[/bold]: {node['quarantined']}")
    if body["durable"]:
        console.print(f"durable checkpoint of step {body['durable']['step']}: {body['durable']['path']}")
    with_racks = any(node["rack"] for node in body["nodes"])
    table = Table("node", *(["rack"] if with_racks else []), *_COLUMNS)
    for node in body["nodes"]:
        table.add_row(node["node"], *([node["rack"] or "-"] if with_racks else []), *_row(node))
    console.print(table)
    ranks = [rank for rank in body["ranks"] if "unique_bytes" in rank]
    if ranks:
        table = Table(*_RANK_COLUMNS)
        for rank in ranks:
            table.add_row(*_rank_row(rank))
        console.print(table)


def _warnings(body: dict[str, Any]) -> Iterator[str]:
    if not body["spares"]:
        yield "[bold]no spare[/bold]: after a loss the job waits for one; add it with: deadpool agent --spare --join"
    if (drain := body["drain"]) is not None:
        yield f"node {drain['node']} is being drained ({drain['stage']}), its ranks go to node {drain['successor']}"
    for slow in body["stragglers"]:
        factor = f"{slow['factor']} times" if slow["factor"] is not None else "much longer than"
        times = f"{slow['own_s']} s of a step of {slow['step_s']} s, usual are {slow['usual_s']} s"
        yield f"[bold]slow[/bold]: node {slow['node']} works {factor} as long as the others: {times}"


def _interval(interval: dict[str, Any]) -> str:
    every, budget = interval["every"], interval["budget"]
    steps = "step" if every == 1 else f"{every} steps"
    begin = f" from version {interval['from']} on" if interval["from"] else ""
    limit = f"at most {_percent(budget)} of the step time" if budget else "whatever it takes"
    return f"a snapshot every {steps}{begin}, for {limit}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


_RANK_COLUMNS = (
    "rank", "unique", "replicated", "record", "copied per step", "sent per step", "stall", "to", "replicas at ranks",
)  # fmt: skip


def _rank_row(rank: dict[str, Any]) -> list[str]:
    copied, sent, stall = rank["copied_bytes_per_step"], rank["wire_bytes_per_step"], rank["stall_share"]
    return [
        str(rank["rank"]),
        _size(rank["unique_bytes"]),
        _size(rank["replica_bytes"]),
        _size(rank["record_bytes"]),
        _size(copied) if copied is not None else "nothing yet",
        _size(sent) if sent is not None else "nothing yet",
        _percent(stall) if stall is not None else "-",
        ", ".join(rank["wire_bytes"]),
        ",".join(map(str, rank["peers"])) or "-",
    ]


def _size(count: float) -> str:
    """In the unit in which it has one to three digits before the point."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


_COLUMNS = ("role", "ranks", "step", "holders", "trainers", "arena", "sent", "GB/s")


def _row(node: dict[str, Any]) -> list[str]:
    steps = [step for step in node["steps"].values() if step is not None]
    trainers = ", ".join(t["state"] if t["rank"] is None else f"{t['state']} r{t['rank']}" for t in node["trainers"])
    rate = node.get("push_gbps")
    return [
        node["role"] + (", quarantined" if node["quarantined"] else ""),
        ",".join(map(str, node["ranks"])),
        str(min(steps)) if steps else "",
        ",".join(node["holders"]),
        trainers,
        f"{node.get('arena_bytes', 0) / 1e6:.0f} MB",
        f"{node.get('bytes_pushed', 0) / 1e6:.0f} MB",
        f"{rate:.2f}" if rate else "",
    ]
