"""deadpool sim: the protocol's cores in a simulated world, seed by seed, looked at by checkers."""

from __future__ import annotations

import json as json_format
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deadpool.sim.run import Result


def sim(seeds: int = 200, first: int = 0, story: bool = False, json: Path | None = None) -> None:
    """Run SEEDS seeds from FIRST on. Exit code 1, and one command that replays it, for each seed that fails."""
    from deadpool.sim.run import run_seed

    began = time.monotonic()
    results: list[Result] = []
    for seed in range(first, first + seeds):
        result = run_seed(seed, story=story)
        results.append(result)
        _tell(result, story=story)
        if len(results) % 100 == 0:
            print(f"{len(results)} of {seeds} seeds", flush=True)
    _sum_up(results, time.monotonic() - began)
    if json is not None:
        json.write_text(json_format.dumps([asdict(result) for result in results]), encoding="utf-8")
    if any(result.violation for result in results):
        raise SystemExit(1)


def _tell(result: Result, *, story: bool) -> None:
    if story:
        print("\n".join(result.story))
        print(f"seed {result.seed}: {result.outcome}")
    if result.violation:
        print(f"seed {result.seed} FAILED {result.violation}\n  replay: {result.replay}", flush=True)


def _sum_up(results: list[Result], elapsed_s: float) -> None:
    failed = [result for result in results if result.violation]
    survived = sum(result.outcome == "all ranks ended" for result in results)
    faults, steps = sum(r.faults for r in results), sum(r.steps for r in results)
    print(
        f"{len(results)} seeds, {len(failed)} failed; {survived} jobs came to their end, {len(results) - survived} "
        f"ended early and said why\n{faults} faults, {steps} rank-steps in {elapsed_s:.1f} s: "
        f"{len(results) / elapsed_s:.1f} seeds/s, {steps / elapsed_s:.0f} simulated steps/s"
    )
