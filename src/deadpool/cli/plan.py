"""`deadpool plan`: how many spares, which protection and how often, for a cluster and a job."""

from __future__ import annotations

import functools
import inspect
import json as json_format
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.arguments import Json, check_at_least, check_output, write_output
from deadpool.cli.command_groups import load_from_lab
from deadpool.sizing.inputs import Inputs

if TYPE_CHECKING:
    from deadpool.sizing.advice import Advice
    from deadpool.sizing.failure_history import FailureCounts
    from deadpool.sizing.inputs import Phases


def with_inputs(function: Callable[..., None]) -> Callable[..., None]:
    """Gives the command a flag for each field of Inputs, which describes it. It gets those that were given."""

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        known = {each.name: arguments.pop(each.name) for each in fields(Inputs)}
        function(**arguments, given={name: value for name, value in known.items() if value is not None})

    own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [*map(_parameter, fields(Inputs)), *(each for each in own if each.name != "given")]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def _parameter(each: Any) -> inspect.Parameter:
    kind: Any = int | None if isinstance(each.default, int) else float | None
    words = f"{each.metadata['unit']} {each.metadata['meaning']} (default: {each.default:g})"
    option = typer.Option(f"--{each.name.replace('_', '-')}", help=words)
    return inspect.Parameter(
        each.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, option], default=None
    )


@with_inputs
def plan(
    spares: Annotated[int | None, typer.Option(help="so many spares, instead of a recommendation")] = None,
    goodput_at_least: Annotated[
        float | None, typer.Option(help="per cent; as few spares as bring it, instead of the least price")
    ] = None,
    protect: Annotated[str | None, typer.Option(help="this scheme: copies=N or rs(K,M)")] = None,
    capture_every: Annotated[int | None, typer.Option(help="this capture interval, in steps")] = None,
    durable_every_min: Annotated[float | None, typer.Option(help="minutes between durable checkpoints")] = None,
    racks_named: Annotated[bool, typer.Option(help="agents are told their rack (--rack)")] = True,
    failure_log: Annotated[
        Path | None, typer.Option(help="rate from this log: CSV or JSON lines with time and, if known, kind")
    ] = None,
    log_days: Annotated[float | None, typer.Option(help="days that the log covers (default: first to last)")] = None,
    events: Annotated[
        list[Path] | None, typer.Option(help="rate, nodes and step time from the job in this run folder; repeatable")
    ] = None,
    measured: Annotated[
        list[Path] | None, typer.Option(help="phases of a recovery from these events.jsonl or run folders; repeatable")
    ] = None,
    simulate: Annotated[
        int, typer.Option(help="so many long runs of the real coordinator core beside the model (torch-deadpool-lab)")
    ] = 0,
    first_seed: Annotated[int, typer.Option(help="of --simulate")] = 1,
    simulate_ranks: Annotated[int, typer.Option(help="ranks per node in --simulate")] = 1,
    jobs: Annotated[int, typer.Option(help="processes for --simulate; 0: one per core")] = 0,
    why: Annotated[bool, typer.Option("--why", help="print what the answer rests on, too")] = False,
    svg: Annotated[
        Path | None, typer.Option(help="draw goodput over spares and over the interval into this file")
    ] = None,
    json: Json = False,
    *,
    given: dict[str, Any],
) -> None:
    """Recommend spares, protection and intervals for a cluster, with the goodput to expect and its price. Every input
    has a default; every assumption is printed with --why."""
    from deadpool.sizing.advice import Wishes, advise
    from deadpool.sizing.failure_history import mix
    from deadpool.sizing.presentation import short_text
    from deadpool.sizing.presentation import why as reasons
    from deadpool.sizing.protection import parse_scheme

    check_output(svg, "svg")
    inputs, seen = _inputs(given, failure_log, log_days, events or [])
    check_at_least(0, spares=spares, durable_every_min=durable_every_min, simulate=simulate, jobs=jobs)
    check_at_least(1, capture_every=capture_every, simulate_ranks=simulate_ranks)
    _check_goodput(goodput_at_least, spares)
    simulation = load_from_lab("plan-simulation") if simulate else None  # which refuses before any work is done
    wishes = Wishes(
        spares=spares,
        scheme=parse_scheme(protect) if protect is not None else None,
        every=capture_every,
        durable_s=60 * durable_every_min if durable_every_min is not None else None,
        racks_known=racks_named,
        goodput=goodput_at_least / 100 if goodput_at_least is not None else None,
    )
    advice = advise(
        inputs,
        mix(inputs, seen.shares() if seen is not None else None),
        _phases(measured or []),
        wishes,
        evidence=seen.unexpected if seen is not None else None,
        rate_from=_rate_words(given, seen),
    )
    if not json:
        print(short_text(advice) + ("\n" + reasons(advice) if why else "\n(--why: what this rests on)"))
    if svg is not None:
        _draw(advice, svg, quiet=json)
    answer = as_json(advice)
    if simulation is not None:
        answer["simulation"] = simulation(
            advice, count=simulate, first=first_seed, per_node=simulate_ranks, jobs=jobs, quiet=json
        )
    if json:
        json_format.dump(answer, sys.stdout, indent=1)
        print()


def _check_goodput(wanted: float | None, spares: int | None) -> None:
    from deadpool.errors import ConfigError

    if wanted is not None and not 0 < wanted < 100:
        raise ConfigError(f"goodput_at_least={wanted!r} cannot be used: give per cent, more than 0 and less than 100")
    if wanted is not None and spares is not None:
        raise ConfigError("--goodput-at-least and --spares cannot be used together: give one of them")


def _inputs(
    given: dict[str, Any], failure_log: Path | None, log_days: float | None, events: list[Path]
) -> tuple[Inputs, FailureCounts | None]:
    """What history tells is a default for what was not given."""
    from deadpool.errors import ConfigError
    from deadpool.sizing.failure_history import from_events, read_log

    if failure_log is not None and events:
        raise ConfigError("--events and --failure-log cannot be used together: give one of them")
    if log_days is not None and failure_log is None:
        raise ConfigError(f"log_days={log_days:g} cannot be used without a log: give --failure-log as well")
    seen = read_log(failure_log, Inputs(**given), log_days) if failure_log is not None else None
    if events:
        seen = from_events([(path.name, _read(path, "events")) for path in events])
    known: dict[str, Any] = {}
    if seen is not None:
        known = {"mtbf_h": seen.mtbf_h, "nodes": seen.nodes, "step_s": seen.step_s}
    return Inputs(**{name: value for name, value in known.items() if value is not None} | given), seen


def _read(path: Path, name: str) -> list[dict[str, Any]]:
    from deadpool.errors import ConfigError
    from deadpool.events.event import read_events

    file = path / "events.jsonl" if path.is_dir() else path
    if not file.exists():
        raise ConfigError(
            f"{name}={str(path)!r} cannot be used: give a run folder with events.jsonl in it, or that file"
        )
    return read_events(file)


def _phases(paths: list[Path]) -> Phases:
    from deadpool.sizing.inputs import Phases, measured

    if not paths:
        return Phases()
    return measured([(str(path), _read(path, "measured")) for path in paths])


def _rate_words(given: dict[str, Any], seen: FailureCounts | None) -> str:
    if "mtbf_h" in given:
        return f"as given, one per node in {given['mtbf_h']:g} h"
    if seen is None:
        return "that of Llama 3's 405B run, one per node in 6,335 h"
    low, high = seen.interval_h
    return f"one per node in {seen.mtbf_h:,.0f} h (nine in ten: {low:,.0f} to {high:,.0f}), from {seen.source}"


def _draw(advice: Advice, svg: Path, *, quiet: bool) -> None:
    from deadpool.sizing.presentation import draw

    write_output(svg, draw(advice))
    if not quiet:
        print(f"drawn into {svg}")


def as_json(advice: Advice) -> dict[str, Any]:
    best = advice.best
    return {
        "recommended": {
            "spares": best.choice.spares,
            "protect": str(best.choice.scheme),
            "holders": max(1, best.choice.scheme.copies),
            "capture_every": best.choice.every,
            "durable_every_s": best.choice.durable_s,
            "spare_wait_s": 3600 * advice.inputs.wait_h,
            "audit_every": advice.audits.every,
        },
        "aim": advice.aim,
        "goodput": best.goodput,
        "band": list(advice.band),
        "waiting_share": best.short.share,
        "copies_lost_per_run": best.fatal_per_s * advice.inputs.seconds,
        "survives_a_rack": advice.survives_rack,
        "losses": best.losses(),
        "kinds": [asdict(kind) for kind in best.kinds],
        "costs": asdict(best.costs),
        "audits": asdict(advice.audits),
        "schemes": {str(each.choice.scheme): each.goodput for each in advice.schemes},
        "nearby": [{"spares": each.choice.spares, "goodput": each.goodput} for each in advice.nearby],
        "alternatives": [asdict(each) for each in advice.others],
        "inputs": asdict(advice.inputs),
        "mix": [asdict(each) for each in advice.mix],
        "phases": asdict(advice.phases),
        "rate_from": advice.rate_from,
    }
