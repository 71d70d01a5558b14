"""`deadpool lab corruption`: devices of a real job err in audited steps, and each error has to be found."""

from __future__ import annotations

import json as json_format
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deadpool.cli.arguments import Figures, check_at_least, check_more_than, check_output, write_output
from deadpool.config.orders import FLIPS

if TYPE_CHECKING:
    from deadpool_lab.corruption.error_trial import ErrorTrial, Outcome


def corruption(
    injections: Annotated[int, typer.Option(help="how many errors, all in one job")] = 20,
    seed: Annotated[int, typer.Option(help="decides what flips, in which rank, and in which computation")] = 1,
    layout: Annotated[str, typer.Option(help="ddp, fsdp2, hsdp, tp or 3d")] = "fsdp2",
    place: Annotated[list[str] | None, typer.Option(help=f"only these (repeatable): {', '.join(FLIPS)}")] = None,
    minutes: Annotated[float, typer.Option(help="no error is injected after that time")] = 30.0,
    keep: Annotated[Path | None, typer.Option(help="keep the run folders here, with events and logs")] = None,
    out: Figures = None,
) -> None:
    """Flip bits of activations, gradients, parameters and moments in steps of one job that are computed twice, and of
    its copies. Exit code 0: each was found, ranks were named where the rule names them, and the job ended as without an
    error."""
    from deadpool.cli.interrupts import CODE_INTERRUPTED, stop_on_interrupts
    from deadpool.cli.job_client import ask
    from deadpool.control.launch.folder_lock import temporary_folder
    from deadpool.errors import ConfigError
    from deadpool_lab.corruption.error_trial import ErrorTrial
    from deadpool_lab.corruption.plan import SHAPES, draw

    check_at_least(1, injections=injections)
    check_more_than(0, minutes=minutes)
    check_output(out, "out")
    if layout not in SHAPES:
        raise ConfigError(f"layout={layout!r} cannot be used: give one of {', '.join(SHAPES)}")
    for each in place or ():
        if each not in FLIPS:
            raise ConfigError(f"place={each!r} cannot be used: give one of {', '.join(FLIPS)}")
    stop_on_interrupts()
    errors = draw(SHAPES[layout], injections, seed, tuple(dict.fromkeys(place or FLIPS)))
    try:
        with temporary_folder("deadpool-corruption-") if keep is None else nullcontext(keep.resolve()) as folder:
            deadline = time.monotonic() + 60.0 * minutes
            trial = ErrorTrial(SHAPES[layout], errors, folder, deadline, ask, _print_outcome)
            trial.run()
    except KeyboardInterrupt:
        print("interrupted: all processes are ended and all files removed")
        raise typer.Exit(CODE_INTERRUPTED) from None
    figures = _figures(trial, seed, injections)
    if out is not None:
        write_output(out, json_format.dumps(figures, indent=2) + "\n")
    raise typer.Exit(_print_table(trial, figures))


def _print_outcome(outcome: Outcome) -> None:
    error = outcome.error
    where = "copied" if error.is_in_copy else "computed again" if error.in_redo else "computed first"
    named = f"rank {', '.join(map(str, outcome.named))} named" if outcome.named else "nobody named"
    good = outcome.is_detected and outcome.is_named_rightly
    print(
        f"{' ' if good else '!'} #{error.number:<4} {error.flips:10} of rank {error.rank} in step {outcome.step}, "
        f"where it was {where}: {outcome.stage or 'NOT FOUND'}, {named}, {outcome.took_s:.1f} s",
        flush=True,
    )


def _figures(trial: ErrorTrial, seed: int, asked: int) -> dict[str, Any]:
    outcomes = trial.outcomes
    return {
        "layout": trial.shape.layout,
        "seed": seed,
        "asked": asked,
        "injected": len(outcomes),
        "detected": sum(each.is_detected for each in outcomes),
        "named_rightly": sum(each.is_named_rightly for each in outcomes),
        "bit_identical": not trial.problems,
        "problems": trial.problems,
        "errors": [each.record() for each in outcomes],
    }


def _print_table(trial: ErrorTrial, figures: dict[str, Any]) -> int:
    print(f"\n{'flips':12}{'injected':>9}{'detected':>9}{'named':>7}{'to be named':>13}")
    for flips in sorted({each.error.flips for each in trial.outcomes}):
        of_kind = [each for each in trial.outcomes if each.error.flips == flips]
        detected, named = sum(each.is_detected for each in of_kind), sum(bool(each.named) for each in of_kind)
        wanted = sum(bool(each.expected) for each in of_kind)
        print(f"{flips:12}{len(of_kind):9}{detected:9}{named:7}{wanted:13}")
    same = "bit-identical to" if figures["bit_identical"] else "NOT THE SAME AS"
    counted = f"{figures['injected']} of {figures['asked']} errors injected, {figures['detected']} detected"
    print(f"{counted}; the end is {same} the undisturbed run")
    for problem in trial.problems:
        print(f"  ! {problem}")
    found = figures["detected"] == figures["named_rightly"] == figures["injected"] == figures["asked"]
    return 0 if found and figures["bit_identical"] else 1
