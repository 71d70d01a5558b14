"""`deadpool plan --simulate`: the model beside long runs of the real coordinator core, with the same rates."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deadpool.sizing.advice import Advice
    from deadpool_lab.sim.endurance.setup import EnduranceSetup, Lived, Outage

_NODE = {"reset": "node", "repair": "node"}


def setup_of(advice: Advice, per_node: int) -> EnduranceSetup:
    """The same cluster, rates and durations for the simulator, which knows nothing of the model."""
    from deadpool.protocol.schemes import Scheme
    from deadpool_lab.sim.endurance.setup import Durations, EnduranceSetup

    inputs, best, phases = advice.inputs, advice.best, advice.phases
    durations = Durations(
        detect_process_s=phases.detect_process_s,
        detect_node_s=phases.detect_node_s,
        unwind_s=phases.unwind_s + phases.plan_s,
        build_s=inputs.build_s,
        load_s=best.costs.rebuild_s + phases.prepare_s,
        own_load_s=best.costs.own_load_s + phases.prepare_s,
        connect_s=phases.connect_s,
        reprotect_s=best.costs.push_s,
        commit_lag_s=best.costs.lag_s,
        durable_write_s=best.write_s,
        durable_read_s=best.read_s,
    )
    return EnduranceSetup(
        nodes=inputs.nodes,
        per_node=per_node,
        spares=best.choice.spares,
        scheme=Scheme.parse(str(best.choice.scheme)),
        nodes_per_rack=inputs.nodes_per_rack,
        racks_known=best.choice.racks_known,
        step_s=inputs.step_s,
        overhead=best.overhead,
        capture_every=best.choice.every,
        durable_every_s=best.choice.durable_s,
        spare_wait_s=3600.0 * inputs.wait_h,
        days=inputs.days,
        durations=durations,
        outages=tuple(_outage(each) for each in advice.mix if each.per_s > 0),
    )


def _outage(each: Any) -> Outage:
    from deadpool_lab.sim.endurance.setup import Outage

    return Outage(name=each.name, kind=_NODE.get(each.kind, each.kind), per_s=each.per_s, away_s=each.away_s)


class DayPrinter:
    """One line on stderr for each tenth of a run that lasts."""

    def __init__(self, seed: int, days: float) -> None:
        self._seed, self._days, self._tenths = seed, days, 0

    def __call__(self, seconds: float) -> None:
        tenths = int(10 * seconds / (86400 * self._days))
        if tenths > self._tenths and tenths < 10:
            self._tenths = tenths
            print(f"  seed {self._seed}: day {seconds / 86400:.0f} of {self._days:g}", file=sys.stderr, flush=True)


def run_one(setup: EnduranceSetup, seed: int, show: bool = False) -> tuple[int, Lived]:
    from deadpool.control.loops import collect_seldom
    from deadpool_lab.sim.endurance.long_run import LongRun

    collect_seldom()
    return seed, LongRun(setup, seed).run(DayPrinter(seed, setup.days) if show else None)


def run_seeds(setup: EnduranceSetup, seeds: range, jobs: int, show: bool) -> Iterator[tuple[int, Lived]]:
    """Yields runs as they come to their end. Each has a process of its own, at most `jobs` at a time."""
    from concurrent.futures import ProcessPoolExecutor, as_completed

    if len(seeds) == 1 or jobs == 1:
        yield from (run_one(setup, seed, show) for seed in seeds)
        return
    with ProcessPoolExecutor(min(jobs, len(seeds))) as pool:
        for done in as_completed([pool.submit(run_one, setup, seed, show) for seed in seeds]):
            yield done.result()


def simulate(advice: Advice, *, count: int, first: int, per_node: int, jobs: int, quiet: bool) -> dict[str, Any]:
    """Prints model, simulation and difference; returns the same for JSON."""
    setup, model = setup_of(advice, per_node), advice.best.goodput
    found: dict[int, Lived] = {}
    if not quiet:
        print(f"\nsimulating {setup.days:g} days of {setup.nodes} nodes ({per_node} ranks each), {count} seeds")
        print("  seed   goodput  less model  interruptions  waiting  redone  from durable  core steps")
    seeds, jobs = range(first, first + count), jobs or os.cpu_count() or 1
    for seed, lived in run_seeds(setup, seeds, jobs, show=sys.stderr.isatty()):
        found[seed] = lived
        if not quiet:
            _print_row(seed, lived, model)
    return _compare(advice, found, quiet)


def _print_row(seed: int, lived: Lived, model: float) -> None:
    ended = f"  ended: {lived.ended[:70]}" if lived.ended else ""
    print(
        f"  {seed:4}  {100 * lived.goodput:7.3f} %  {100 * (lived.goodput - model):+7.3f}  "
        f"{lived.interruptions.total():12}  {lived.waiting_s / 3600:6.1f} h  {lived.redone_steps:6}  "
        f"{lived.from_checkpoint:12}  {lived.core_steps:10}{ended}",
        flush=True,
    )


def _compare(advice: Advice, found: dict[int, Lived], quiet: bool) -> dict[str, Any]:
    goodputs = [found[seed].goodput for seed in sorted(found)]
    mean, model, (low, high) = statistics.fmean(goodputs), advice.best.goodput, advice.band
    error = statistics.stdev(goodputs) / len(goodputs) ** 0.5 if len(goodputs) > 1 else None
    inside = sum(low <= each <= high for each in goodputs)
    if not quiet:
        spread = f" ± {100 * error:.3f} (standard error)" if error is not None else ""
        print(
            f"  model {100 * model:.3f} %, simulation {100 * mean:.3f} %{spread}, difference "
            f"{100 * (mean - model):+.3f} percentage points; {inside} of {len(goodputs)} seeds within the "
            f"band of nine in ten ({100 * low:.2f} to {100 * high:.2f} %)"
        )
    return {
        "model": model,
        "simulation": mean,
        "standard_error": error,
        "difference": mean - model,
        "seeds_in_band": inside,
        "seeds": {
            str(seed): {
                "goodput": lived.goodput,
                "interruptions": dict(lived.interruptions),
                "waiting_s": lived.waiting_s,
                "stopped_s": lived.stopped_s,
                "redone_steps": lived.redone_steps,
                "from_checkpoint": lived.from_checkpoint,
                "recoveries": lived.recoveries,
                "core_steps": lived.core_steps,
                "ended": lived.ended,
            }
            for seed, lived in sorted(found.items())
        },
    }
