"""The state of a running job: `deadpool status` prints it as JSON or in words, `deadpool show top` keeps it on the
whole terminal."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deadpool.cli.arguments import Json, for_a_job

if TYPE_CHECKING:
    from rich.table import Table

    from deadpool.views.top.model import Model, Sources

_ADD_SPARE = "deadpool agent --spare --join HOST:PORT SCRIPT"

_REDRAW_S = 0.25


@for_a_job()
def status(
    run: Path | None,
    json: Json = False,
) -> None:
    """Show the nodes and ranks of a running job, how far it is, what a loss would cost, and what snapshots cost."""
    from deadpool.cli.job_client import ask, find_run_dir

    body = ask(find_run_dir(run), "status")
    if json:
        print(json_format.dumps(body, indent=2))
    else:
        _print(body)


def _print(body: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    for line in _lines(body):
        console.print(line)
    console.print(_node_table(body["nodes"]))
    ranks = [rank for rank in body["ranks"] if "unique_bytes" in rank]
    if ranks:
        console.print(_rank_table(ranks))


def _lines(body: dict[str, Any]) -> Iterator[str]:
    done = f"at step {body['step']} ({body['step']} steps are completed)"
    yield f"[bold]{body['phase']}[/bold] {done}, generation {body['generation']} since {body['cause']}"
    yield _protection(body)
    yield from _scheme(body["protection"])
    yield _interval(body["interval"])
    if body["slots"]:
        yield _slots(body["slots"])
    if body["overhead"]:
        yield _overhead(body["overhead"])
    yield from _warnings(body)
    if checkpoint := body.get("checkpoint"):
        yield f"durable checkpoint: after {checkpoint['step']} steps, {checkpoint['name']}"
    if own := body["durable"]:
        yield f"checkpoint that the script has reported: after {own['step']} steps, {own['path']}"


def _protection(body: dict[str, Any]) -> str:
    version, lag = body["watermark"], body["lag_steps"]
    if version is None:
        return "[bold]NOT PROTECTED YET[/bold]: no version is complete; a loss now starts the script at its first line"
    redone = (
        f"a loss now repeats {lag} completed step{'' if lag == 1 else 's'}" if lag else "a loss now repeats no step"
    )
    if not body["protected"]:
        return f"[bold]NOT PROTECTED YET[/bold]: copies of version {version} are still on their way to their holders"
    return f"protected: every copy of version {version} is in place; {redone}"


def _scheme(facts: dict[str, Any] | None) -> Iterator[str]:
    """Where there is something to say about how it was chosen."""
    if facts is not None and facts["scheme"]["reason"]:
        yield f"snapshots are protected by {facts['scheme']['scheme']}: {facts['scheme']['reason']}"


def _job_size(size: dict[str, Any]) -> Iterator[str]:
    inexact = f"not bit-identical from step {size['inexact_from']} on"
    if 0 < size["nodes"] < size["of"]:
        count = f"{size['nodes']} of {size['of']} nodes train"
        yield f"[bold]shrunk[/bold]: {count}, {inexact}; add nodes with: {_ADD_SPARE}"
    elif size["inexact_from"] is not None:
        yield f"grown again after it had shrunk: {inexact}"


def _warnings(body: dict[str, Any]) -> Iterator[str]:
    from deadpool.events.story import unwritten

    yield from (f"[bold]{sentence}[/bold]" for sentence in unwritten(body, only=None))
    if (standbys := body.get("standbys")) and not standbys["left"]:
        then = "the loss of the coordinator's machine would end the job; start one again"
        yield f"[bold]no standby coordinator[/bold]: {then}"
    elif standbys:
        yield f"{standbys['left']} of {standbys['of']} standby coordinators answer"
    if failing := body.get("checkpoint_failing"):
        times = f"{failing['attempts']} attempt{'' if failing['attempts'] == 1 else 's'}"
        yield f"[bold]no durable checkpoint is written[/bold]: {times} failed, the last one: {failing['reason']}"
    yield from _job_size(body["size"])
    if not body["spares"]:
        then = "shrinks if it can, or waits for one" if body["size"]["may_shrink"] else "waits for one"
        yield f"[bold]no spare[/bold]: after a loss the job {then}; add it with: {_ADD_SPARE}"
    if (drain := body["drain"]) is not None:
        yield f"node {drain['node']} is being drained ({drain['stage']}); its ranks go to node {drain['successor']}"
    for slow in body["stragglers"]:
        yield f"[bold]slow[/bold]: {_slowness(slow)}; replace it with: deadpool node replace --straggler"
    if corruption := body.get("corruption"):
        yield from _corruption(corruption)
    if audits := body.get("step_audits"):
        yield _step_audits(audits)
    if body["same_rack"]:
        positions = ", ".join(map(str, body["same_rack"]))
        yield (
            f"[bold]copies in their own rack[/bold]: those of positions {positions}, because no other rack has room; "
            "add nodes in other racks"
        )
    for node in body["nodes"]:
        if node["quarantined"]:
            reason = f"{node['quarantined']}; check the machine, then: deadpool node drain --node {node['node']}"
            yield f"[bold]node {node['node']} is quarantined[/bold]: {reason}"


def _corruption(found: dict[str, Any]) -> Iterator[str]:
    for node, errors in found["errors"].items():
        yield f"[bold]corruption[/bold]: node {node} has erred {errors} time{'' if errors == 1 else 's'}; test it"
    if found["suspected_step"] is not None:
        yield f"[bold]corruption[/bold]: replicas differed at step {found['suspected_step']}, which is computed again"
    if found["unsolved"]:
        yield f"[bold]replicas differ[/bold], and nothing is done about it any more: {found['unsolved']}"


def _step_audits(found: dict[str, Any]) -> str:
    newest, judged = found["audited_up_to"], found["confirmed"]
    told = f"audited up to step {newest}" if newest is not None else "no step was audited yet"
    if judged:
        told += "; nodes whose steps another one has computed alike: "
        told += ", ".join(f"{node} up to {step}" for node, step in sorted(judged.items()))
    if found["judging_ended"]:
        told += f"; spares compare no more: {found['judging_ended']}"
    if found["ended"]:
        return f"[bold]{told}[/bold], and none is audited any more: {found['ended']}"
    if not found["every"]:
        return f"{told}; a step is computed twice when it is asked for"
    return f"{told}; one in {found['every']} is computed twice"


def _slowness(slow: dict[str, Any]) -> str:
    work = f"node {slow['node']} works {slow['own_s']} s at each step of {slow['step_s']} s"
    if slow["factor"] is None:
        return f"{work}, and the other nodes hardly at all"
    return f"{work}, {slow['factor']} times as long as the other nodes ({slow['usual_s']} s)"


def _interval(interval: dict[str, Any]) -> str:
    every, budget = interval["every"], interval["budget"]
    steps = "step" if every == 1 else f"{every} steps"
    begin = f" from version {interval['from']} on" if interval["from"] else ""
    limit = f"which may cost at most {_percent(budget)} of the step time" if budget else "whatever that costs"
    why = interval["widened"]
    widened = f"; not more often: {why['reason']} (to change that: {why['remedy']})" if why else ""
    return f"one snapshot every {steps}{begin}, {limit}{widened}"


def _slots(slots: dict[str, Any]) -> str:
    if slots["asked"]:
        return f"each rank has {slots['asked']} slots for snapshots, as asked for (--slots)"
    least, most = slots["least"], slots["most"]
    count = str(least) if least == most else f"{least} to {most}"
    why = {"memory": "by memory", "slots": "in any case"}[slots["limit"]]
    share = f"{_size(slots['arena_bytes'])} of {_size(slots['arena_at_most_bytes'])}"
    return (
        f"each rank has {count} slots for snapshots, and up to {slots['at_most']} ({why}) where versions take so long "
        f"to be committed; copies take {share} that they may take on node {slots['fullest']}, half of its memory"
    )


def _overhead(measured: dict[str, Any]) -> str:
    share, error, count = 100 * measured["share"], 100 * measured["error"], measured["comparisons"]
    return (
        f"protection costs {share:.2f} % ± {error:.2f} % of the step time, by {count} comparisons with steps without it"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


_RANK_COLUMNS = (
    "rank", "unique", "replicated", "record", "copied per step", "sent per step", "stall", "to", "replicas at ranks",
)  # fmt: skip


def _rank_table(ranks: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(*_RANK_COLUMNS)
    for rank in ranks:
        table.add_row(*_rank_row(rank))
    return table


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
    """Writes a size in the unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


_NODE_COLUMNS = ("role", "ranks", "step", "holders", "trainers", "memory", "sent", "GB/s")


def _node_table(nodes: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    with_racks = any(node["rack"] for node in nodes)
    table = Table("node", *(["rack"] if with_racks else []), *_NODE_COLUMNS)
    for node in nodes:
        table.add_row(node["node"], *([node["rack"] or "-"] if with_racks else []), *_node_row(node))
    return table


def _node_row(node: dict[str, Any]) -> list[str]:
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


@for_a_job()
def top(
    run: Path | None,
) -> None:
    """Show a running job on the whole terminal: state, nodes, last fault, step time. Keys: d drains the node under the
    cursor, s shows the last recovery, q quits."""
    import sys

    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.errors import ConfigError
    from deadpool.views.top.model import Model, Sources

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("deadpool show top needs a terminal: use deadpool status --json in scripts")
    folder = find_run_dir(run)
    folder.coordinator()  # refuses a folder that is none of a job

    def request(what: str, **arguments: Any) -> dict[str, Any]:
        return ask(folder, what, **arguments)

    sources = Sources(request, folder.events)
    sources.start()
    try:
        _show(Model(), sources)
    except KeyboardInterrupt:
        pass
    finally:
        sources.close()


def _show(model: Model, sources: Sources) -> None:
    import os

    from rich.console import Console
    from rich.live import Live

    from deadpool.views.top.view import Keyboard, draw

    # A shell may have exported the size that its window had once.
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    console = Console(_environ=variables)
    with Keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        while not model.is_over:
            _refresh(model, sources)
            size = console.size
            live.update(draw(model, size.width, size.height), refresh=True)
            for key in keyboard.read(_REDRAW_S):
                if (node := model.press(key)) is not None:
                    sources.drain(node)


def _refresh(model: Model, sources: Sources) -> None:
    if (status := sources.take_status()) is not None:
        model.update(status)
    model.failure, model.fold, model.story = sources.failure, sources.fold, sources.story
    if sources.message:
        model.message, sources.message = sources.message, ""
