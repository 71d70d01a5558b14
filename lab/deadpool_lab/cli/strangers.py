"""`deadpool lab chaos --strangers N`: run generated scripts without DeadPool, with it, and with injected faults."""

from __future__ import annotations

import importlib.util
import json as json_format
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from deadpool.cli.arguments import write_output

if TYPE_CHECKING:
    from deadpool_lab.strangers.trial import ScriptResult

_SHOWN = 6


def run_strangers(
    count: int, seed: int, only: int | None, kind: str, minutes: float, keep: Path | None, out: Path | None
) -> NoReturn:
    """Ends the command: with code 0 only if every script is exact, named first or refused as it has to be, and no
    process is left."""
    from deadpool.cli.interrupts import CODE_INTERRUPTED, stop_on_interrupts

    _check_packages()
    _check_kind(kind)
    stop_on_interrupts()
    numbers = list(range(count)) if only is None else [only]
    folder = (keep or Path.cwd() / f"strangers-{seed}").resolve()
    try:
        figures = _run(seed, numbers, kind, folder, minutes, keep is not None)
    except KeyboardInterrupt:
        print("interrupted: all processes are ended and all files removed")
        raise typer.Exit(CODE_INTERRUPTED) from None
    if out is not None:
        write_output(out, json_format.dumps(figures, indent=2) + "\n")
    raise typer.Exit(_conclude(figures, folder))


def list_kinds() -> NoReturn:
    """Prints the kinds and ends the command."""
    from deadpool_lab.strangers.kinds import KINDS

    for kind in KINDS:
        print(f"{kind.name:15} {'exact or named' if kind.expected == 'named' else 'exact':15} {kind.about}")
    raise typer.Exit(0)


def _check_packages() -> None:
    from deadpool.errors import ConfigError

    if importlib.util.find_spec("torchdata") is None:
        raise ConfigError("--strangers cannot be used without torchdata, whose loaders the scripts use: install it")


def _check_kind(kind: str) -> None:
    from deadpool_lab.strangers.kind import kind_named
    from deadpool_lab.strangers.kinds import KINDS

    if kind not in ("", "all"):
        kind_named(KINDS, kind)


def _run(seed: int, numbers: list[int], kind: str, folder: Path, minutes: float, keep: bool) -> dict[str, Any]:
    from deadpool.cli.job_client import ask
    from deadpool_lab.chaos.surroundings.processes import guarded, left_behind
    from deadpool_lab.strangers.script_trials import ScriptTrials, summary

    deadline = time.monotonic() + 60.0 * minutes
    print(f"seed {seed}, {len(numbers)} scripts: each by torchrun, protected, and protected with faults", flush=True)
    with guarded() as mark:
        trials = ScriptTrials(
            seed=seed,
            numbers=numbers,
            kind=kind,
            folder=folder,
            keep=keep,
            deadline=deadline,
            ask=ask,
            report=_print_result,
        )
        results = trials.run()
        left = left_behind(mark)
    return summary(results, seed=seed, asked=len(numbers), left_behind=left)


def _print_result(result: ScriptResult) -> None:
    script, shape = result.script, result.script.shape
    took = sum(result.seconds.values())
    lines = [
        f"#{script.number:<4} {result.result:11} {took:5.1f} s  {shape.nodes} x {shape.per_node} ranks, "
        f"{script.steps} steps: {', '.join(script.tags)}"
    ]
    if result.injections:
        lines.append(f"      {result.hit} faults: {'; '.join(map(str, result.injections))}")
    lines += [f"      missed: {missed}" for missed in result.missed]
    if result.named:
        lines.append(f"      named before the first fault: {'; '.join(result.named)}")
    if script.refused and result.is_good:
        lines.append(f"      refused: {script.refused}")
    if not result.is_good:
        shown, more = result.problems[:_SHOWN], len(result.problems) - _SHOWN
        lines += [f"      ! {line}" for problem in shown for line in problem.splitlines()]
        lines += [f"      ! and {more} more"] if more > 0 else []
        lines.append(f"      again: {script.command}")
    print("\n".join(lines), flush=True)


def _conclude(figures: dict[str, Any], folder: Path) -> int:
    from deadpool_lab.strangers.script_trials import is_good
    from deadpool_lab.strangers.trial import GOOD

    results = ", ".join(f"{count} {name}" for name, count in figures["results"].items())
    print(f"\n{figures['run']} of {figures['asked']} scripts, {figures['faults']} faults: {results}")
    for reason, count in figures["refused"].items():
        print(f"refused {count} times: {reason}")
    if figures["undisturbed"]:
        print(f"no fault was injected in time in scripts {figures['undisturbed']}")
    for script in figures["scripts"]:
        if script["result"] not in GOOD:
            print(f"{script['result']}: {script['command']}")
    for name in figures["left_behind"]:
        print(f"process left behind: {name}")
    good = is_good(figures)
    if not good:
        print(f"what is known of the failures is in {folder}")
    return 0 if good else 1
