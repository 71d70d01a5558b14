"""`deadpool lab chaos`: inject real faults into real jobs, again and again, and compare the results bit for bit."""

from __future__ import annotations

import json as json_format
import shutil
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.arguments import (
    Figures,
    OldFigures,
    check_at_least,
    check_more_than,
    check_output,
    in_new_form,
    write_output,
)

if TYPE_CHECKING:
    from deadpool_lab.chaos.runner import InjectedFault

_ENDLESS = 10_000


def chaos(
    faults: Annotated[int, typer.Option(help="how many faults, over all jobs")] = 50,
    seed: Annotated[int, typer.Option(help="decides which faults come, when, and what they hit")] = 1,
    layout: Annotated[str, typer.Option(help="fsdp2, 3d or both")] = "both",
    minutes: Annotated[float, typer.Option(help="time limit for all of it; a run that needs longer has failed")] = 30.0,
    kinds: Annotated[str, typer.Option(help="only these kinds of fault, separated by commas (default: all)")] = "",
    one_by_one: Annotated[
        bool,
        typer.Option(
            "--one-by-one",
            help="default settings and steps of 1 s; one fault at a time, until the job trains without what it hit",
        ),
    ] = False,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive",
            help="protection follows the health of nodes; transient and permanent faults and illnesses come for "
            "--minutes, whatever --faults says, and all decisions are listed",
        ),
    ] = False,
    full_disk_minutes: Annotated[
        float,
        typer.Option(
            help="instead: the disk of the run folder is full for so long, a node and a trainer are lost meanwhile, "
            "and all events are there afterwards"
        ),
    ] = 0.0,
    keep: Annotated[Path | None, typer.Option(help="keep the run folders here, with events and logs")] = None,
    out: Figures = None,
    json: OldFigures = None,
    strangers: Annotated[int, typer.Option(help="instead: so many generated scripts, each run three times")] = 0,
    only: Annotated[int | None, typer.Option(help="of the generated scripts only this one, by its number")] = None,
    kind: Annotated[
        str, typer.Option(help="generated scripts of this kind only; all: the kinds in turn; list: print them and end")
    ] = "",
) -> None:
    """Train small jobs, kill, stop, cut off and damage their nodes, and compare with undisturbed runs bit for bit."""
    check_more_than(0, minutes=minutes)
    check_at_least(0, strangers=strangers)
    out = in_new_form(out, json, "--json --out")
    check_output(out, "out")
    if strangers or kind == "list":
        from deadpool_lab.cli.strangers import list_kinds, run_strangers

        if kind == "list":
            list_kinds()
        run_strangers(strangers, seed, only, kind, minutes, keep, out)
    _check_only(only, kind)
    from deadpool.cli.interrupts import CODE_INTERRUPTED, stop_on_interrupts
    from deadpool.control.launch.folder_lock import temporary_folder

    _check(faults, layout, _words(kinds))
    _check_full_disk(full_disk_minutes, kinds, one_by_one, adaptive)
    stop_on_interrupts()
    diagnosis = (out.parent if out is not None else Path.cwd()) / f"chaos-{seed}-diagnosis"
    shutil.rmtree(diagnosis, ignore_errors=True)  # left by an earlier run
    try:
        with temporary_folder("deadpool-chaos-") if keep is None else nullcontext(keep.resolve()) as folder:
            figures = _run(
                faults, seed, layout, minutes, _words(kinds), one_by_one, adaptive, full_disk_minutes, folder, diagnosis
            )
    except KeyboardInterrupt:
        print("interrupted: all processes are ended and all files removed")
        raise typer.Exit(CODE_INTERRUPTED) from None
    if out is not None:
        write_output(out, json_format.dumps(figures, indent=2) + "\n")
    raise typer.Exit(_print_result(figures, diagnosis))


def _check_only(only: int | None, kind: str) -> None:
    from deadpool.errors import ConfigError

    if kind:
        raise ConfigError(f"kind={kind!r} cannot be used without --strangers: it chooses among the generated scripts")
    if only is not None:
        raise ConfigError(f"only={only} cannot be used without --strangers: it chooses one of the generated scripts")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check(faults: int, layout: str, kinds: list[str]) -> None:
    from deadpool.errors import ConfigError
    from deadpool_lab.chaos.faults import FAULTS
    from deadpool_lab.chaos.plan import JOBS

    if layout != "both" and layout not in JOBS:
        raise ConfigError(f"layout={layout!r} cannot be used: give {', '.join(JOBS)} or both")
    check_at_least(1, faults=faults)
    for kind in kinds:
        if kind not in FAULTS:
            raise ConfigError(f"kinds={kind!r} cannot be used: give some of {', '.join(FAULTS)}")


def _check_full_disk(minutes: float, kinds: str, one_by_one: bool, adaptive: bool) -> None:
    from deadpool.errors import ConfigError

    if minutes < 0 or (minutes and (kinds or one_by_one or adaptive)):
        raise ConfigError(
            f"full_disk_minutes={minutes:g} cannot be used: give a number above 0, without --kinds, --one-by-one and "
            "--adaptive"
        )


def _run(
    faults: int,
    seed: int,
    layout: str,
    minutes: float,
    kinds: list[str],
    one_by_one: bool,
    adaptive: bool,
    full_disk_minutes: float,
    folder: Path,
    diagnosis: Path,
) -> dict[str, Any]:
    from deadpool.cli.job_client import ask
    from deadpool.errors import ConfigError
    from deadpool_lab.chaos.comparison import Case, summary
    from deadpool_lab.chaos.faults import OF_ADAPTIVE_RUNS
    from deadpool_lab.chaos.plan import ADAPTIVE, CROWDED, JOBS, ONE_BY_ONE, full_disk
    from deadpool_lab.chaos.surroundings.disk import open_disk
    from deadpool_lab.chaos.surroundings.network import open_network
    from deadpool_lab.chaos.surroundings.processes import guarded, left_behind

    deadline = time.monotonic() + 60.0 * minutes * (2 if adaptive else 1) + (300.0 if adaptive else 0.0)
    names = list(JOBS) if layout == "both" else [layout]
    plan = full_disk(60.0 * full_disk_minutes) if full_disk_minutes else None
    faults = _ENDLESS if adaptive else faults if plan is None else len(plan) * len(names)
    timing = ADAPTIVE if adaptive else ONE_BY_ONE if one_by_one else CROWDED
    timing = timing if plan is None else replace(timing, disk_s=60.0 * full_disk_minutes)
    network, disk = open_network(), open_disk()
    if plan is not None and disk.cannot_fail:
        raise ConfigError(
            f"full_disk_minutes={full_disk_minutes:g} cannot be used here: {disk.cannot_fail}. Leave it out"
        )
    kind = "network namespaces" if network.can_cut else "process groups on loopback, so no node can be cut off"
    place = f"no disk of its own, so that cannot fail: {disk.cannot_fail}" if disk.cannot_fail else "a disk of its own"
    print(f"seed {seed}, {'as many as come in time' if adaptive else faults} faults; nodes are {kind}", flush=True)
    print(f"the run folder has {place}", flush=True)
    shares = [faults // len(names) + (index < faults % len(names)) for index in range(len(names))]
    results = []
    with guarded() as mark, _Display(None if adaptive else faults) as display:
        for name, share in zip(names, shares, strict=True):
            case = Case(
                job=JOBS[name],
                seed=seed,
                faults=share,
                kinds=kinds or (sorted(OF_ADAPTIVE_RUNS) if adaptive else []),
                timing=timing,
                plan=plan,
                network=network,
                disk=disk,
                folder=folder / name,
                diagnosis=diagnosis / name,
                deadline=deadline,
                ask=lambda run_dir: ask(run_dir, "status"),
                tell=display.show,
                until=time.monotonic() + 60.0 * minutes / len(names) if adaptive else None,
            )
            results.append(case.run())
        left = left_behind(mark) + disk.left_behind()
        network.close()
    asked = sum(len(result.faults) for result in results) if adaptive else faults
    return summary(results, seed=seed, asked=asked, network=kind, disk=place, left_behind=left)


class _Display:
    """A line for each fault, and progress bars."""

    def __init__(self, faults: int | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description:38}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns)
        self._task = self._bars.add_task("faults recovered", total=faults)

    def __enter__(self) -> _Display:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, what: str, step: int, injected: InjectedFault | None) -> None:
        if injected is None or injected.healed_at is None:
            self._bars.update(self._task, description=f"{what}, step {step}")
        if injected is not None:
            self._bars.console.print(_line(injected), highlight=False, soft_wrap=True)
            self._bars.advance(self._task, injected.healed_at is not None)


def _line(injected: InjectedFault) -> str:
    fault, costs = injected.fault, injected.costs
    begin = f"#{injected.number:<3} {fault.kind:20} {fault.described:24}"
    if injected.healed_at is None:
        beside = f", beside {', '.join(f'#{number}' for number in injected.beside)}" if injected.beside else ""
        return f"{begin} at step {injected.at_step}, {injected.during}{beside}"
    redone = f", {costs['steps_redone']} steps redone" if costs["steps_redone"] else ""
    return f"{begin} first new step: {costs['first_step_s']:.2f} s, longest pause {costs['pause_s']:.2f} s{redone}"


def _print_result(figures: dict[str, Any], diagnosis: Path) -> int:
    from rich.console import Console
    from rich.table import Table

    from deadpool_lab.chaos.comparison import is_good

    console = Console()
    table = Table("fault", "count", "median s", "worst s", title="from the fault to the first new step")
    for kind, costs in figures["first_step_s"].items():
        table.add_row(kind, str(costs["count"]), f"{costs['median']:.2f}", f"{costs['worst']:.2f}")
    console.print(table)
    for job in figures["jobs"]:
        counts = f"{job['faults']} faults in {job['took_s']:.0f} s, {job['steps']} steps, {job['events']} events"
        console.print(f"{job['layout']}: {counts}")
        for problem in job["problems"]:
            console.print(f"  {problem}", style="bold red", markup=False)
        for decision in figures["decisions"][job["layout"]]:
            console.print(f"  {decision['what']}: {decision['reason']}", markup=False, highlight=False, soft_wrap=True)
    for name in figures["left_behind"]:
        console.print(f"left behind: {name}", style="bold red", markup=False)
    good = is_good(figures)
    verdict = "BIT-IDENTICAL to the undisturbed runs" if figures["bit_identical"] else "NOT BIT-IDENTICAL"
    console.print(verdict, style="bold green" if good else "bold red")
    if diagnosis.exists():
        console.print(f"what is known of the failure is in {diagnosis}")
    return 0 if good else 1
