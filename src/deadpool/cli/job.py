"""Commands that act on a running job.

`deadpool job protect` changes how its snapshots are protected, and `deadpool job audit` plays a recovery for each kind
of rank and says whether the script is exact. `deadpool node drain` takes a node out without losing a step, `replace`
drains the slowest one, `kill` injects a fault, and `flip` lets a device err without a word, in a job that was started
for drills.

A command that waits for a node to leave asks the coordinator, so that it also works from another machine.
"""

from __future__ import annotations

import json as json_format
import signal as signals
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from deadpool.cli.arguments import Json, WaitS, check_at_least, for_a_job
from deadpool.cli.job_client import ask
from deadpool.config.orders import FLIPS, MOMENTS
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError


@for_a_job(formerly="scheme")
def protect(
    run: Path | None,
    scheme: Annotated[
        str | None, typer.Option(help="copies=N, rs(K,M), or auto: the job chooses again, within its bounds")
    ] = None,
    json: Json = False,
) -> None:
    """Protect the snapshots of a running job in another way: all ranks stop between two steps, copies go to their new
    places, and no step is computed again. Until they are there the old ones stay. `deadpool status` says when every
    version is protected. The job does not undo what was asked for here, unless it is asked for auto."""
    from deadpool.cli.job_client import find_run_dir
    from deadpool.config.checks import AUTO
    from deadpool.protocol.schemes import Scheme

    if scheme is None:
        raise ConfigError("no scheme was chosen: give --scheme with copies=N, rs(K,M) or auto, as in --scheme copies=2")
    if scheme != AUTO:
        try:
            Scheme.parse(scheme)
        except ValueError as error:
            what_now = "give copies=N, rs(K,M) or auto, as in --scheme copies=2"
            raise ConfigError(f"scheme={scheme!r} cannot be used, {error}: {what_now}") from None
    body = ask(find_run_dir(run), "protect", scheme=scheme)
    print(json_format.dumps(body) if json else _in_words(body["scheme"], body["before"]))


def _in_words(scheme: str, before: str) -> str:
    """What was asked for; a plan carries it out, perhaps after a recovery that is under way."""
    if scheme == before:
        return f"nothing changes: snapshots are to be protected by {scheme} already"
    when = "from the next plan on; `deadpool status` says when every version is"
    return f"snapshots will be protected by {scheme} instead of {before} {when}"


_ASK_S = 0.2
_TWICE = 2


@for_a_job()
def audit(
    run: Path | None,
    step: Annotated[
        bool,
        typer.Option("--step", help="compute one of the next steps twice instead, and look for a device that errs"),
    ] = False,
    rank: Annotated[int | None, typer.Option(help="with --step: a spare computes the step for this rank too")] = None,
    wait: Annotated[bool, typer.Option(help="wait for the verdict")] = True,
    wait_s: WaitS = 600.0,
    json: Json = False,
) -> None:
    """Play a recovery without a loss, for one rank of each kind in turn: another process takes the rank, all ranks
    compute the last steps again, and digests of their state are compared. In a last one all ranks are cut off inside of
    a step. Exit code 1: the script is not exact, or there was no verdict. With --step no rank moves, and exit code 1
    means that some rank has computed something else the second time; with --rank the ranks of its node move to a spare,
    and exit code 1 may also mean that no spare was ready."""
    from deadpool.cli.job_client import find_run_dir

    check_at_least(0, wait_s=wait_s)
    folder = find_run_dir(run)
    if step:
        _audit_step(folder, rank, wait_s if wait else None, json=json)
        return
    if rank is not None:
        raise ConfigError("--rank is for one step that is computed twice: give --step too")
    before = len(ask(folder, "status")["audit"]["verdicts"])
    ask(folder, "audit")
    if not wait:
        print("{}" if json else "asked for: deadpool status will have the verdict")
        return
    deadline = time.monotonic() + wait_s
    while (state := ask(folder, "status")["audit"])["under_way"]:
        if time.monotonic() > deadline:
            print(f"no verdict within {wait_s:g} s, the audit goes on: deadpool status will have it", file=sys.stderr)
            raise typer.Exit(1)
        time.sleep(_ASK_S)
    verdicts = state["verdicts"][before:]
    print(json_format.dumps(verdicts) if json else "\n".join(map(_line, verdicts)))
    is_whole = bool(verdicts) and verdicts[-1]["inside"]  # which comes last
    if not is_whole:
        print("not every recovery could be played: the event audit_given_up says why", file=sys.stderr)
    if not is_whole or not all(each["exact"] for each in verdicts):
        raise typer.Exit(1)


def _audit_step(folder: RunDir, rank: int | None, wait_s: float | None, *, json: bool) -> None:
    ask(folder, "step_audit", **({"rank": rank} if rank is not None else {}))
    if wait_s is None:
        print("{}" if json else "asked for: deadpool status will say up to which step is audited")
        return
    deadline = time.monotonic() + wait_s
    while (state := ask(folder, "status")["step_audits"]) and state["asked_for"]:
        if time.monotonic() > deadline:
            print(f"no verdict within {wait_s:g} s, the audit goes on: deadpool status will have it", file=sys.stderr)
            raise typer.Exit(1)
        time.sleep(_ASK_S)
    if not state:
        print("the coordinator that was asked is lost, and the audit with it: ask again", file=sys.stderr)
        raise typer.Exit(1)
    if state["ended"]:
        print(f"no step is audited any more: {state['ended']}", file=sys.stderr)
        raise typer.Exit(1)
    last = state["last"]
    print(json_format.dumps(last) if json else _line_of_step(last))
    if rank is not None and not last["nodes"]:
        print("no two nodes agree, or no spare was ready in time: ask again", file=sys.stderr)
    if not last["alike"] or (rank is not None and not last["nodes"]):
        raise typer.Exit(1)


def _line_of_step(last: dict[str, Any]) -> str:
    judges = f", for ranks {', '.join(map(str, last['ranks']))} on nodes {', '.join(last['nodes'])}"
    where = judges if last["nodes"] else ""
    if last["alike"]:
        return f"step {last['step']} was computed {'twice' if last['computed'] == _TWICE else 'again'}, alike{where}"
    found = "the events corruption_found, corruption_unexplained or corruption_undecided tell of it"
    return f"step {last['step']} was computed {last['computed']} times, and not alike{where}: {found}"


def _line(verdict: dict[str, Any]) -> str:
    place = "inside of" if verdict["inside"] else "at"
    where = f"rank {verdict['replaced']} was replaced {place} step {verdict['step']}"
    if verdict["exact"] is None:
        return f"NOT JUDGED: {where}, but {verdict['reason']}: pass what steps train to protect(), or log their loss"
    if verdict["exact"]:
        again = "were back where it begins" if verdict["inside"] else "computed the same again"
        undecided = "".join(f"; {each} differs, and alone decides nothing" for each in verdict.get("undecided", ()))
        return f"exact: {where}, and {verdict['ranks']} ranks {again}{undecided}"
    return f"NOT EXACT: {where}, and {verdict['part']} of rank {verdict['rank']} differs ({verdict['rule']})"


def await_departure(folder: RunDir, node: str, wait_s: float) -> None:
    """Raises ConfigError if the node is still in the job and no longer being drained, or still being drained after
    `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        status = ask(folder, "status")
        if node not in [each["node"] for each in status["nodes"]]:
            return
        if status["drain"] is None or status["drain"]["node"] != node:
            raise ConfigError(
                f"node {node} was not drained and stays in the job: {folder.events} says why (event drain_failed); "
                "drain it again when the job runs"
            )
        if time.monotonic() > deadline:
            raise ConfigError(
                f"node {node} has not left within {wait_s:g} s, and is still being drained: `deadpool status "
                f"{folder.path}` says how far that is, and --wait-s waits longer"
            )
        time.sleep(_ASK_S)


@for_a_job(formerly="node")
def drain(
    run: Path | None,
    node: Annotated[str | None, typer.Option(help="the node that is to leave")] = None,
    wait: Annotated[bool, typer.Option(help="wait until it has left, or until it is clear that it stays")] = True,
    wait_s: WaitS = 1800.0,
    json: Json = False,
) -> None:
    """Take a node out of a running job: a spare takes its ranks between two steps, no step is computed again, and then
    the node's agent ends. A spare leaves at once. Refused while no spare can take the ranks, and during a recovery."""
    from deadpool.cli.job_client import find_run_dir

    if node is None:
        raise ConfigError(
            "no node was chosen: name the one that is to leave, as in --node n3 (deadpool status lists all)"
        )
    if not node:
        raise ConfigError("node='' cannot be used: give the name of a node, as `deadpool status` does")
    check_at_least(0, wait_s=wait_s)
    folder = find_run_dir(run)
    body = ask(folder, "drain", node=node)
    if wait:
        await_departure(folder, node, wait_s)
    told = f"its ranks {body['ranks']} go to node {body['successor']}" if body["ranks"] else "it was a spare"
    print(json_format.dumps(body) if json else f"node {node} {'has left' if wait else 'leaves'}: {told}")


@for_a_job()
def replace(
    run: Path | None,
    straggler: Annotated[bool, typer.Option("--straggler", help="the node that is slow all the time")] = False,
    wait: Annotated[bool, typer.Option(help="wait until it has left, or until it is clear that it stays")] = True,
    wait_s: WaitS = 1800.0,
    json: Json = False,
) -> None:
    """Drain the slowest of the nodes that `deadpool status` calls slow. For another use deadpool node drain --node."""
    from deadpool.cli.job_client import find_run_dir

    if not straggler:
        raise ConfigError(
            "no node was chosen: give --straggler for the slowest one, or name one: deadpool node drain --node n3"
        )
    check_at_least(0, wait_s=wait_s)
    folder = find_run_dir(run)
    body = ask(folder, "replace")
    if wait:
        await_departure(folder, body["node"], wait_s)
    slow = f"worked {body['own_s']} s at each step, the other nodes {body['usual_s']} s"
    print(json_format.dumps(body) if json else f"node {body['node']} {slow}; its ranks go to node {body['successor']}")


_AT_HELP = "wait for this moment of --step: " + "; ".join(f"{word}: {when}" for word, when in MOMENTS.items())


@for_a_job()
def kill(
    run: Path | None,
    node: Annotated[str | None, typer.Option(help="hit a whole node: its agent and all its trainers")] = None,
    rank: Annotated[int | None, typer.Option(help="hit the one trainer that holds this rank")] = None,
    at: Annotated[str | None, typer.Option(help=_AT_HELP)] = None,
    step: Annotated[int | None, typer.Option(help="the step N of --at; 0 is the first step of the job")] = None,
    signal: Annotated[str, typer.Option(help="the signal to send")] = "SIGKILL",
    json: Json = False,
) -> None:
    """Send a signal to a node, or to the trainer of a rank: now, or at a moment of training."""
    from deadpool.cli.job_client import find_run_dir
    from deadpool.config.orders import InjectionOrder, signal_number

    order = InjectionOrder(node=node, rank=rank, signal=signal_number(signal), at=at, step=step).checked()
    body = ask(find_run_dir(run), "kill", node=node, rank=rank, signal=order.signal, at=at, step=step)
    name = signals.Signals(order.signal).name
    place = f"rank {rank} on node {body['node']}" if rank is not None else f"node {body['node']}"
    told = f"sent {name} to {place}" if at is None else f"{name} is ordered for {place}: {order.moment()}"
    print(json_format.dumps(body) if json else told)


@for_a_job()
def flip(
    run: Path | None,
    rank: Annotated[int | None, typer.Option(help="the rank whose device errs")] = None,
    step: Annotated[int | None, typer.Option(help="the step in which it errs; 0 is the first one")] = None,
    audited: Annotated[bool, typer.Option("--audited", help="instead: in the next step that is audited")] = False,
    what: Annotated[str, typer.Option(help=f"whose bit flips: {', '.join(FLIPS)}")] = "parameter",
    always: Annotated[bool, typer.Option("--always", help="in each later step too, whichever rank it serves")] = False,
    json: Json = False,
) -> None:
    """Let the device of a rank err without a word: one bit of its state flips. Only in a job started with --drills."""
    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.config.orders import flip_order

    if (step is None) != audited:
        raise ConfigError("an error needs one step: give --step N, or --audited")
    order = flip_order(rank, what, step, lasts=always)
    asked = {"rank": rank, "signal": 0, "at": order.at, "step": step, "flip": what, "lasts": always}
    body = ask(find_run_dir(run), "kill", **asked)
    print(json_format.dumps(body) if json else f"ordered for rank {rank} on node {body['node']}: {order.moment()}")
