"""`deadpool durable`: checkpoints on disk, and what a job left there when it could not go on.

`deadpool durable`: list, verify and export durable checkpoints, have a running job write one now, and read the copies
that a job left on disk when it could not go on.

`salvage`: `deadpool durable salvage`: read the copies that a job left on disk when it could not go on.
"""

from __future__ import annotations

import json as json_format
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.arguments import Json, OldTimeoutS, WaitS, check_at_least, for_a_job, in_new_form

if TYPE_CHECKING:
    from deadpool.durable.manifest import Manifest


def salvage(
    folders: Annotated[list[Path], typer.Argument(help="the folders that the job named when it ended")],
    out: Annotated[
        Path | None, typer.Option(help="folder for one file per rank that torch.load(..., weights_only=True) reads")
    ] = None,
) -> None:
    """List the copies that nodes kept of a job that could not go on, check them, and write them as plain tensors."""
    from deadpool.snapshot.record.salvage_reader import read_folder

    for rank, kept in sorted(read_folder(*folders).items()):
        size = sum(tensor.nbytes for tensor in kept.tensors.values())
        missing = f", without {', '.join(kept.missing)}" if kept.missing else ""
        print(f"rank {rank}: {kept.step} completed steps, {len(kept.tensors)} tensors, {size / 1e6:.1f} MB{missing}")
        if out is not None:
            kept.save(out)


app = typer.Typer(
    help="Durable checkpoints: list, verify, export, write one now; salvage copies.", no_args_is_help=True
)
_POLL_S = 0.2

Where = Annotated[str, typer.Argument(metavar="PATH", help="what the job was given with --durable")]


@app.command("list")
def list_checkpoints(where: Where, json: Json = False) -> None:
    """List complete checkpoints, newest first, and folders of writes that were cut off; as JSON one line each. Exits 1
    where none is complete."""
    from deadpool.durable.writer import torn

    store, manifests = _complete_in(where)
    for manifest in manifests:
        print(json_format.dumps(_facts(manifest)) if json else _line(manifest))
    for name in torn(store, manifests):
        print(json_format.dumps({"name": name, "complete": False}) if json else f"{name}: not complete")
    if not manifests:
        print(f"there is no complete checkpoint in {where}", file=sys.stderr if json else sys.stdout)
        raise typer.Exit(1)


@app.command()
def verify(
    where: Where,
    name: Annotated[str | None, typer.Argument(help="one checkpoint (default: all complete ones)")] = None,
) -> None:
    """Read every byte of checkpoints and compare checksums. Exits 1 where something is damaged, or none is there."""
    from deadpool.durable.manifest import faults_of

    store, found = _complete_in(where)
    manifests = [each for each in found if name in (None, each.name)]
    damaged = False
    for manifest in manifests:
        faults = faults_of(store, manifest)
        damaged = damaged or bool(faults)
        print(f"{manifest.name}: {'DAMAGED' if faults else 'as written'}")
        for fault in faults:
            print(f"  {fault}")
    if not manifests:
        print(f"there is no complete checkpoint {name or ''} in {where}".replace("  ", " "))
    raise typer.Exit(1 if damaged or not manifests else 0)


@app.command()
def export(
    where: Where,
    out: Annotated[Path, typer.Option(help="the folder that gets the files")],
    name: Annotated[str | None, typer.Argument(help="one checkpoint (default: the newest complete one)")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="the object, by its keyword in protect() (default: the only module)")
    ] = None,
    shard_bytes: Annotated[str, typer.Option(help="the size of a file at most, as in 500MB")] = "5GB",
    force: Annotated[bool, typer.Option("--force", help="replace an exported model in the folder")] = False,
) -> None:
    """Write a model of a checkpoint as safetensors files, with the names of its parameters."""
    from deadpool.config.values import parse_bytes
    from deadpool.durable.export import export as write
    from deadpool.errors import ConfigError

    limit = parse_bytes(shard_bytes, "--shard-bytes")
    try:
        done = write(_open(where), out, name=name, prefix=prefix, shard_bytes=limit, force=force)
    except OSError as error:
        raise ConfigError(
            f"the export failed: {error}. Give another --out, with room, or read the checkpoint again later"
        ) from error
    size = f"{done.tensor_count} tensors, {done.total_bytes / 1e6:.1f} MB"
    print(f"{done.manifest.name}: {size} of {done.prefix} are in {out}")
    if done.of_ranks:
        print(f"  {len(done.of_ranks)} names end in @rankN, since ranks have different tensors of one name")
    if done.left_out:
        print(f"  {len(done.left_out)} buffers of other ranks were left out, as {done.left_out[0]}")


@app.command()
@for_a_job()
def now(
    run: Path | None,
    wait: Annotated[bool, typer.Option(help="wait until it is complete, or has failed")] = True,
    wait_s: WaitS = 1800.0,
    timeout_s: OldTimeoutS = None,
) -> None:
    """Have the running job write a checkpoint of the newest committed version, as SIGUSR1 to its coordinator does.

    If the newest committed version was written before, the next one is written."""
    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.errors import ConfigError
    from deadpool.events.event import read_events

    wait_s = in_new_form(wait_s, timeout_s, "--timeout-s --wait-s")
    check_at_least(0, wait_s=wait_s)
    folder = find_run_dir(run)
    before = read_events(folder.events)
    ask(folder, "durable")
    if not wait:
        return
    deadline = time.monotonic() + wait_s
    while (answer := answer_to_request(before, read_events(folder.events))) is None:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"no checkpoint was complete within {wait_s:g} s, and the job goes on writing it: `deadpool status "
                f"{folder.path}` names the newest one, and --wait-s waits longer"
            )
        time.sleep(_POLL_S)
    if answer["what"] != "checkpoint_written":
        print(f"no checkpoint: {answer['reason']}")
        raise typer.Exit(1)
    print(f"checkpoint after {answer['step']} steps: {answer['name']}")


app.command()(salvage)


def answer_to_request(before: list[dict[str, Any]], events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What became of a checkpoint that was asked for after `before`; None: nothing yet.

    A write that was under way already is of an older version, so its end is no answer. Its failure is one: the next
    attempt comes only after a while."""
    under_way = {event["name"] for event in before if event["what"] == "checkpoint_begun"}
    for event in events[len(before) :]:
        match event["what"]:
            case "checkpoint_written" if event["name"] not in under_way:
                return event
            case "checkpoint_failed" if "name" in event:  # else a store could not be searched
                return event
            case "completed" | "failed":
                return event | {"reason": f"the job has ended ({event['reason']})"}
    return None


def _open(where: str) -> Any:
    from deadpool.durable.store import absolute, open_store
    from deadpool.errors import ConfigError

    if not where.strip():
        raise ConfigError("PATH is empty: give what the job has as --durable")
    return open_store(absolute(where))


def _complete_in(where: str) -> tuple[Any, list[Manifest]]:
    """Credentials of an object store are found by its own library: what that complains of is told."""
    from deadpool.durable.manifest import complete_ones
    from deadpool.errors import ConfigError

    store = _open(where)
    try:
        return store, complete_ones(store)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"{where} cannot be read: {reason}. Give what the job has as --durable, and the same credentials"
        ) from error


def _line(manifest: Manifest) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.written_at))
    layout = f"{manifest.positions} x {manifest.per_node} ranks"
    return f"{manifest.name}: after {manifest.step} steps, {manifest.total_bytes / 1e6:.1f} MB, {layout}, {at}"


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "complete": True,
        "step": manifest.step,
        "job": manifest.job,
        "bytes": manifest.total_bytes,
        "nodes": manifest.positions,
        "nproc_per_node": manifest.per_node,
        "written_at": manifest.written_at,
    }
