"""`deadpool demo`: kill a node of a small training job, and show that no step is lost."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deadpool.cli.arguments import Figures, OldFigures, check_output, in_new_form, write_output

if TYPE_CHECKING:
    from deadpool.demo.trial import Comparison

LAYOUTS = ("fsdp2", "ddp", "plain")
NODES = ("n0", "n1", "n2", "n3")
FEWEST_STEPS = 6


def demo(
    layout: Annotated[str, typer.Option(help="fsdp2, ddp or plain")] = "fsdp2",
    steps: Annotated[int, typer.Option(help="training steps of each run")] = 16,
    victim: Annotated[str, typer.Option(help="the node to kill")] = "n2",
    out: Figures = None,
    json: OldFigures = None,
) -> None:
    """Train a small GPT on 4 nodes twice, the second time with SIGKILL to a node, and compare bit for bit."""
    _check(layout, steps, victim)
    out = in_new_form(out, json, "--json --out")
    check_output(out, "out")
    from deadpool.cli.interrupts import CODE_INTERRUPTED, stop_on_interrupts
    from deadpool.control.launch.folder_lock import temporary_folder

    stop_on_interrupts()
    try:
        with temporary_folder("deadpool-demo-") as folder:
            comparison = _run(layout, steps, victim, folder)
    except KeyboardInterrupt:
        print("interrupted: all processes are ended and all files removed")
        raise typer.Exit(CODE_INTERRUPTED) from None
    _print_result(comparison)
    summary = comparison.summary()
    if out is not None:
        write_output(out, json_format.dumps(summary, indent=2) + "\n")
    raise typer.Exit(0 if summary["bit_identical"] else 1)


def _check(layout: str, steps: int, victim: str) -> None:
    from deadpool.errors import ConfigError

    if layout not in LAYOUTS:
        raise ConfigError(f"layout={layout!r} cannot be used: give one of {', '.join(LAYOUTS)}")
    if steps < FEWEST_STEPS:
        raise ConfigError(f"steps={steps} cannot be used: give at least {FEWEST_STEPS}, half of them before the kill")
    if victim not in NODES:
        raise ConfigError(f"victim={victim!r} cannot be used: give one of {', '.join(NODES)}")


def _run(layout: str, steps: int, victim: str, folder: Path) -> Comparison:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from deadpool.demo.trial import compare

    columns = (TextColumn("{task.description:38}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bars:
        tasks: dict[str, int] = {}

        def progress(what: str, done: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=steps)
            bars.update(tasks[what], completed=done)  # type: ignore[arg-type]

        return compare(layout=layout, steps=steps, victim=victim, folder=folder, progress=progress)


def _print_result(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    from deadpool.cli.show.written import print_recovery

    console = Console(highlight=False)
    console.print(f"\nSIGKILL to node {comparison.kill.victim} (agent and trainer) in the middle of a step:")
    print_recovery(comparison.kill.recovery)
    first = comparison.kill.recovery.resume_step
    last = first + comparison.kill.recovery.lost_steps
    table = Table("step", "undisturbed, rank 0", "with the fault, rank 0", "", title="losses around the fault")
    for step in range(max(0, first - 2), min(last + 3, len(comparison.undisturbed.losses[0]))):
        pair = [comparison.undisturbed.losses[0][step], comparison.disturbed.losses[0][step]]
        mark = "redone" if first <= step <= last else ""
        table.add_row(str(step), *(f"{float.fromhex(value):.9f}" for value in pair), mark)
    console.print(table)
    _print_verdict(comparison)


def _print_verdict(comparison: Comparison) -> None:
    summary, wrong = comparison.summary(), comparison.differences()
    print(
        f"first new step done {summary['first_step_s']:.2f} s after the kill; a step takes "
        f"{summary['median_step_s']:.2f} s, so the recovery cost {summary['net_recovery_s']:.2f} s net; "
        f"{summary['survivors_kept']} ranks went on in their processes"
    )
    if wrong:
        print("NOT BIT-IDENTICAL: " + "; ".join(wrong))
    else:
        print("BIT-IDENTICAL: losses of every rank and step, final parameters and optimizer state of every rank")
