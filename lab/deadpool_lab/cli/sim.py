"""`deadpool lab sim`: the protocol in a simulated world, seed by seed, with mutations, at scale.

`catch_all`: `deadpool lab sim --mutations`: break the rules of the protocol one by one, and count the seeds until
one notices.

`measure`: `deadpool lab sim --nodes N`: lose one node of a job of that size, and measure what it costs the
coordinator.

`sim`: `deadpool lab sim`: run the protocol's cores in a simulated world, seed by seed, under checkers.
"""

from __future__ import annotations

import json as json_format
import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deadpool.cli.arguments import Figures, OldFigures, check_at_least, check_output, in_new_form, write_output

if TYPE_CHECKING:
    from deadpool_lab.sim.options import Profile
    from deadpool_lab.sim.run import Result
    from deadpool_lab.sim.sweep import Summary


def catch_all(jobs: int, out: Path | None) -> None:
    """Exits with code 1 if a mutation went unnoticed."""
    from deadpool_lab.sim.mutations import ALL
    from deadpool_lab.sim.sweep import catch_each

    began = time.monotonic()
    found = {}
    for catch in catch_each(ALL, jobs):  # printed as they come, since some take long
        found[catch.mutation] = catch
        told = f"caught in seed {catch.seeds}" if catch.violation else f"NOT CAUGHT in {catch.seeds} seeds"
        reason = (catch.violation or "")[:60]
        print(f"{len(found):3} {catch.mutation:45} {told:24} of {catch.profile:12} {reason}", flush=True)
    catches = [found[mutation.name] for mutation in ALL]
    missed = [catch.mutation for catch in catches if not catch.violation]
    print(f"{len(catches)} mutations, {len(missed)} not caught, {time.monotonic() - began:.1f} s")
    if out is not None:
        report = {"mutations": [asdict(catch) for catch in catches], "not_caught": missed}
        write_output(out, json_format.dumps(report, indent=1))
    if missed:
        raise SystemExit(1)


def measure(nodes: int, per_node: int, out: Path | None) -> None:
    from deadpool.control.loops import collect_seldom
    from deadpool.wire.codec import decode, encode
    from deadpool_lab.sim.scale.loss import measure

    collect_seldom()  # as the real coordinator does
    began = time.monotonic()
    report = measure(nodes, per_node, encode=encode, decode=decode).report()
    report["elapsed_s"] = round(time.monotonic() - began, 1)
    recovery = report["recovery"]
    print(f"{nodes} nodes of {per_node} ranks, one coordinator, one node lost; the worst of three losses")
    print(
        f"heartbeats: {100 * report['heartbeat_share_of_a_core']:.1f} % of a core, "
        f"{report['cpu_us_per_heartbeat']} us each\n"
        f"fault to last plan sent: {report['fault_to_last_plan_s']:.3f} s of CPU, "
        f"to last Go sent: {report['fault_to_last_go_s']:.3f} s\n"
        f"recovery: {recovery['messages']} messages, {recovery['bytes_in']} bytes in, {recovery['bytes_out']} out, "
        f"{recovery['coordinator_cpu_s']:.3f} s of CPU\n"
        f"each committed version: {report['committed_version']['messages']} messages, "
        f"{report['committed_version']['coordinator_cpu_s']:.3f} s of CPU"
    )
    for name, each in recovery["by_type"].items():
        print(f"  {name:13} {each['messages']:7} messages {each['bytes']:10} bytes {each['cpu_s']:8.3f} s")
    if out is not None:
        write_output(out, json_format.dumps(report, indent=1))


_FEWEST_NODES = 4
"""One of them is lost, and the others hold its copies."""


def sim(
    seeds: Annotated[int, typer.Option(help="how many seeds to run")] = 200,
    first: Annotated[int, typer.Option(help="the first seed")] = 0,
    seed: Annotated[int | None, typer.Option(help="run only this seed")] = None,
    story: Annotated[bool, typer.Option(help="print every event of every seed")] = False,
    jobs: Annotated[int, typer.Option(help="processes to use; 0: one per core")] = 0,
    minutes: Annotated[float, typer.Option(help="stop after so many minutes; 0: no limit")] = 0.0,
    profile: Annotated[str, typer.Option(help="the mix of faults that seeds draw from")] = "anything",
    mutations: Annotated[bool, typer.Option(help="break rules one by one, and check that seeds notice it")] = False,
    nodes: Annotated[int, typer.Option(help="instead: measure a loss in a job of so many nodes")] = 0,
    nproc_per_node: Annotated[int, typer.Option(help="ranks on each node, with --nodes")] = 8,
    out: Figures = None,
    json: OldFigures = None,
) -> None:
    """Run the real cores in a seeded world full of faults. For each seed that breaks a rule of the protocol it prints
    one command that replays it, and the exit code is 1."""
    check_at_least(0, jobs=jobs, minutes=minutes)
    check_at_least(1, seeds=seeds, nproc_per_node=nproc_per_node)
    check_at_least(_FEWEST_NODES, nodes=nodes or None)
    out = in_new_form(out, json, "--json --out")
    check_output(out, "out")
    jobs = jobs or os.cpu_count() or 1
    if nodes:
        measure(nodes, nproc_per_node, out)
    elif mutations:
        catch_all(jobs, out)
    else:
        chosen = _profile(profile)
        if seed is not None or story:
            chosen_seeds = range(first, first + seeds) if seed is None else [seed]
            summary, elapsed_s = _print_each(chosen_seeds, chosen)
        else:
            summary, elapsed_s = _run(first, seeds, jobs, minutes, chosen)
        _conclude(summary, elapsed_s, out)


def _profile(name: str) -> Profile:
    from deadpool.errors import ConfigError
    from deadpool_lab.sim.profiles import BY_NAME

    if name not in BY_NAME:
        raise ConfigError(f"profile={name!r} cannot be used: give one of {', '.join(BY_NAME)}")
    return BY_NAME[name]


def _print_each(seeds: Iterable[int], profile: Profile) -> tuple[Summary, float]:
    """The options that a seed draws are printed first."""
    from deadpool_lab.sim.run import run_seed
    from deadpool_lab.sim.sweep import Summary

    summary, began = Summary(), time.monotonic()
    for seed in seeds:
        result = run_seed(seed, story=True, profile=profile)
        print(f"seed {seed}: {result.options}")
        print("\n".join(result.story))
        print(f"seed {seed}: {result.reason}")
        summary.add(result)
        _print_violation(result)
    return summary, time.monotonic() - began


def _run(first: int, seeds: int, jobs: int, minutes: float, profile: Profile) -> tuple[Summary, float]:
    from contextlib import closing

    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from deadpool_lab.sim.sweep import Summary, sweep

    summary, began = Summary(), time.monotonic()
    columns = ("seeds", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[found]}"))
    with (
        Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), transient=True) as progress,
        closing(sweep(first, seeds, jobs=jobs, profile=profile)) as batches,
    ):
        task = progress.add_task("seeds", total=seeds, found="")
        for results, cpu_s in batches:
            summary.cpu_s += cpu_s
            for result in results:
                summary.add(result)
                _print_violation(result)
            found = f"{summary.faults.total()} faults, {len(summary.violations)} violations"
            progress.update(task, completed=summary.seeds, found=found)
            if minutes and time.monotonic() - began > 60 * minutes:
                break
    return summary, time.monotonic() - began


def _print_violation(result: Result) -> None:
    if result.violation:
        print(f"seed {result.seed} FAILED {result.violation}\n  replay: {result.replay}", flush=True)


def _conclude(summary: Summary, elapsed_s: float, out: Path | None) -> None:
    report = summary.report(elapsed_s)
    for outcome, count in summary.outcomes.most_common():
        print(f"{count:7} {outcome}")
    print(
        f"{summary.seeds} seeds, {len(summary.violations)} violations, {summary.faults.total()} faults "
        f"({report['faults_per_seed']} per seed), {summary.steps} rank-steps in {elapsed_s:.1f} s: "
        f"{report['seeds_per_s']} seeds/s, {report['faults_per_s']} faults/s, {report['steps_per_s']} simulated steps/s"
    )
    if out is not None:
        write_output(out, json_format.dumps(report, indent=1))
    if summary.violations:
        raise SystemExit(1)
