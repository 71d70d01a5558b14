"""Kills nodes of a job whose snapshots are coded, at every moment, and compares all losses with an undisturbed run.

    python benchmarks/coded.py --folder out/coded --minutes 20
    python benchmarks/coded_figures.py --json out/coded_figures.json

All is real: agents, trainers and SIGKILL to whole nodes. Under rs(4,1) each of 5 nodes is killed at each moment
(`first`: in the first step ever). Under rs(8,2) each of the 45 pairs of 10 nodes is killed three times: both at once in
mid-step; one at a moment (each moment has five pairs or six) and the other as soon as the fault is known (`fault`); the
same with the other when the plan that replaces the first is out (`plan`). In ten more cases the second dies right after
the recovery of the first. A job takes many faults, one after the other. Results of a job that is done lie
in --folder: the same command goes on where it was stopped, and fails unless everything was survived bit for bit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.control.coordinator.announcement import ask
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences
from deadpool.errors import DeadPoolError
from deadpool_lab.chaos import gated
from deadpool_lab.chaos.gated import GATE_EVERY
from deadpool_lab.workload.run import WorkloadTrial

SCRIPT = Path(gated.__file__)
SIZE = [
    *("--layers", "2", "--width", "256", "--vocabulary", "8192", "--sequence", "8", "--batch", "1"),
    *("--dropout", "0.1", "--clip", "1.0"),
]
"""69 MB of state: 14 MB on each of 5 ranks, 7 MB on each of 10; the shards are not of equal size."""
MOMENTS = ("forward", "backward", "reduce", "clip", "optimizer", "between", "capture", "wire", "recovered")
PAIRS_PER_JOB = 15
WAIT_S = 100.0


@dataclass(frozen=True)
class Case:
    """`second` is None, or when the node at position `victims[1]` is killed: with the first, at `fault` or `plan`."""

    moment: str  # a word of `deadpool node kill --at`, `first`, or `gate`: by a signal while all ranks stand in a step
    victims: tuple[int, ...]
    second: str | None = None

    def __str__(self) -> str:
        return f"{self.moment} {','.join(map(str, self.victims))}" + (
            f" second at {self.second}" if self.second else ""
        )


@dataclass(frozen=True)
class JobPlan:
    name: str
    protect: str
    nodes: int
    spares: int
    cases: tuple[Case, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def gate(self, index: int) -> int:
        """`first` falls before any gate."""
        return GATE_EVERY * (index + (self.cases[0].moment != "first"))

    @property
    def steps(self) -> int:
        return self.gate(len(self.cases)) + 1


def single_losses() -> list[JobPlan]:
    plans = []
    for victim in range(5):
        cases = tuple(Case(moment, (victim,)) for moment in ("first", *MOMENTS))
        plans.append(JobPlan(f"rs41-node{victim}", "rs(4,1)", 5, 2, cases))
    return plans


def double_losses() -> list[JobPlan]:
    pairs = list(itertools.combinations(range(10), 2))
    in_turn = [(pair if index % 2 else pair[::-1], MOMENTS[index % 8]) for index, pair in enumerate(pairs)]
    return [
        *jobs_of_pairs("together", [Case("gate", pair, "together") for pair in pairs]),
        *jobs_of_pairs("fault", [Case(moment, pair, "fault") for pair, moment in in_turn]),
        *jobs_of_pairs("plan", [Case(moment, pair[::-1], "plan") for pair, moment in in_turn]),
        *jobs_of_pairs("recovered", [Case("recovered", (first, (first + 5) % 10)) for first in range(10)]),
    ]


def jobs_of_pairs(name: str, cases: list[Case]) -> list[JobPlan]:
    batches = [cases[start : start + PAIRS_PER_JOB] for start in range(0, len(cases), PAIRS_PER_JOB)]
    return [JobPlan(f"rs82-{name}{i}", "rs(8,2)", 10, 2, tuple(batch)) for i, batch in enumerate(batches)]


class FaultSeries:
    """One job that takes all its cases."""

    def __init__(self, plan: JobPlan, folder: Path, fork_server: SharedForkServer) -> None:
        self.plan, self.folder = plan, folder
        self.gates = folder / "gates"
        self.gates.mkdir(parents=True)
        self.killed: list[tuple[str, ...]] = []
        self._added = plan.nodes + plan.spares
        first = [case for case in plan.cases if case.moment == "first"]
        config = JobConfig(
            nodes=plan.nodes,
            spares=plan.spares,
            protect=plan.protect,
            overhead_budget=0.0,  # every version has to be there
            faults=tuple(f"at=backward step=0 node=n{case.victims[0]}" for case in first),
            **plan.settings,
        )
        self.trial = trial(config, plan.steps, folder, self.gates, fork_server)

    def run(self) -> Results:
        return self.trial.run(lambda _: self._all_cases())

    def _all_cases(self) -> None:
        for index, case in enumerate(self.plan.cases):
            began = time.monotonic()
            self._take(case, self.plan.gate(index))
            print(f"  [{index + 1}/{len(self.plan.cases)}] {case}: {time.monotonic() - began:.1f} s", flush=True)
        last = self.plan.gate(len(self.plan.cases))
        self._await_gate(last)
        self._open(last)

    def _take(self, case: Case, gate: int) -> None:
        if case.moment == "first":
            self.killed.append((f"n{case.victims[0]}",))
        else:
            self._await_gate(gate)
            self._await_ready(gate, max(2, len(case.victims)))
            self._kill_victims(case, gate)
        self._await(lambda: set(self.killed[-1]) <= self._lost(), f"the loss of {self.killed[-1]}")
        for _ in self.killed[-1]:
            self.trial.job.add_node(f"n{self._added}", spare=True)
            self._added += 1

    def _kill_victims(self, case: Case, gate: int) -> None:
        nodes = [self._node_at(position) for position in case.victims]
        plans = len(self._events("planned"))
        if case.moment == "recovered":
            self._kill_after_recovery(case, nodes, gate)
            return
        self.killed.append(tuple(nodes))
        if case.moment == "gate":
            self.trial.job.kill_node(nodes[0])
        else:
            self._order(nodes[0], case.moment, gate if case.moment == "between" else gate + 1)
        if case.second == "together":
            self.trial.job.kill_node(nodes[1])
        self._open(gate)
        if case.second == "fault":
            self._await(lambda: nodes[0] in self._lost(), f"the loss of {nodes[0]}")
            self.trial.job.kill_node(nodes[1])
        elif case.second == "plan":
            self._await(lambda: len(self._events("planned")) > plans, "the plan of the recovery")
            self.trial.job.kill_node(nodes[1])

    def _kill_after_recovery(self, case: Case, nodes: list[str], gate: int) -> None:
        """With one parity the newcomer is lost, before it has computed a step; with two it is another node."""
        if len(nodes) == 1:
            status = ask(self.trial.job.run_dir, "status")
            spares = [node["node"] for node in status["nodes"] if node["role"] == "spare"]
            for spare in spares:
                ask(self.trial.job.run_dir, "kill", node=spare, at="recovered", step=None)
            self.trial.job.kill_node(nodes[0])
            self._open(gate)
            self._await(lambda: bool(self._lost() & set(spares)), "the loss of the newcomer")
            # The other spare would be killed in turn, and is: a third node takes the seat.
            self.killed.append((nodes[0], *spares))
            self.trial.job.add_node(f"n{self._added}", spare=True)
            self._added += 1
            return
        self._order(nodes[1], "recovered", None)
        self.killed.append(tuple(nodes))
        self.trial.job.kill_node(nodes[0])
        self._open(gate)

    def _order(self, node: str, moment: str, step: int | None) -> None:
        known = len(self._events("injection_set"))
        ask(self.trial.job.run_dir, "kill", node=node, at=moment, step=step)
        self._await(lambda: len(self._events("injection_set")) > known, f"{node} to know of {moment}")

    def _await_ready(self, version: int, spares: int) -> None:
        """What a fault finds must not depend on how fast copies travel or processes start."""

        def ready() -> bool:
            status = ask(self.trial.job.run_dir, "status")
            warm = [node for node in status["nodes"] if node["role"] == "spare" and is_warm(node)]
            return (status["watermark"] or 0) >= version and status["protected"] and len(warm) >= spares

        self._await(ready, f"version {version} and {spares} warm spares")

    def _await_gate(self, step: int) -> None:
        self._await((self.gates / f"reached-{step}").exists, f"the gate of step {step}")

    def _open(self, step: int) -> None:
        (self.gates / f"open-{step}").touch()

    def _await(self, ready: Any, what: str) -> None:
        self.trial.await_true(ready, what, WAIT_S)

    def _node_at(self, position: int) -> str:
        nodes = ask(self.trial.job.run_dir, "status")["nodes"]
        return next(str(node["node"]) for node in nodes if node["position"] == position)

    def _lost(self) -> set[str]:
        return {str(event["node"]) for event in self._events("fault")}

    def _events(self, what: str) -> list[dict[str, Any]]:
        return [event for event in self.trial.events() if event["what"] == what]

    def summary(self, undisturbed: Results, disturbed: Results) -> dict[str, Any]:
        ordered = [case.moment for case in self.plan.cases if case.moment not in ("first", "gate", "recovered")]
        return {
            **asdict(self.plan),
            "killed": self.killed,
            "differences": differences(undisturbed, disturbed),
            "missed": [each["at"] for each in self._events("injection_missed")],
            "not_injected": sorted(set(ordered) - {each["at"] for each in self._events("injected")}),
            "steps_done_again": disturbed.steps_done_again(),
            "hangs": [event["reason"] for event in self._events("fault") if not event["ranks"]],
            "recoveries": [
                {"phases_s": each.phases_s, "first_step_s": each.first_step_s, "lost_steps": each.lost_steps}
                for each in self.trial.recoveries()
            ],
        }


def is_warm(node: dict[str, Any]) -> bool:
    return bool(node["trainers"]) and all(trainer["state"] == "parked" for trainer in node["trainers"])


def trial(
    config: JobConfig,
    steps: int,
    folder: Path,
    gates: Path,
    fork_server: SharedForkServer,
    further: Sequence[str] = (),
) -> WorkloadTrial:
    return WorkloadTrial(
        config.checked(),
        ["--layout", "fsdp2", "--steps", str(steps), *SIZE, *further],
        folder,
        deadline_s=WAIT_S,
        script=SCRIPT,
        environment={"WORKLOAD_GATES": str(gates)},
        fork_server=fork_server,
    )


def undisturbed(plan: JobPlan, folder: Path, fork_server: SharedForkServer) -> Results:
    """Is run once for all jobs of as many nodes and steps."""
    calm = folder / f"undisturbed-{plan.nodes}x{plan.steps}"
    out = calm / "out"
    if not (calm / "done").exists():
        calm = fresh(calm)
        trial(JobConfig(nodes=plan.nodes), plan.steps, calm, calm / "none", fork_server).run()
        (calm / "done").touch()
    return Results.read(out)


def fresh(folder: Path) -> Path:
    """What an earlier attempt left is kept beside it: it may be what has to be explained."""
    if folder.exists():
        folder.rename(folder.with_name(f"{folder.name}.{int(time.time())}"))
    return folder


def run_plan(plan: JobPlan, folder: Path, fork_server: SharedForkServer) -> dict[str, Any]:
    path = folder / f"{plan.name}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    print(f"{plan.name}: {plan.protect}, {plan.nodes} nodes, {len(plan.cases)} cases", flush=True)
    expected = undisturbed(plan, folder, fork_server)
    series = FaultSeries(plan, fresh(folder / plan.name), fork_server)
    result = series.summary(expected, series.run())
    path.write_text(json.dumps(result, indent=2) + "\n")
    return result


def table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'job':<22}{'cases':>6}{'recoveries':>11}{'worst prepare':>14}{'worst recovery':>15}  outcome"]
    for each in results:
        recoveries = each["recoveries"]
        prepare = max((r["phases_s"]["prepare"] for r in recoveries), default=0.0)
        whole = max((r["first_step_s"] or 0.0 for r in recoveries), default=0.0)
        outcome = "bit-identical" if is_good(each) else f"FAILED {each['differences'][:2]} {each['not_injected']}"
        cases = len(each["cases"])
        lines.append(f"{each['name']:<22}{cases:>6}{len(recoveries):>11}{prepare:>12.2f} s{whole:>13.2f} s  {outcome}")
    return "\n".join(lines)


def is_good(result: dict[str, Any]) -> bool:
    return not (result["differences"] or result["not_injected"] or result["missed"] or result["hangs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="results, and what every job left")
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no further job after that")
    parser.add_argument("--only", help="only jobs whose name contains this")
    parser.add_argument("--first", type=int, help="only so many cases of each job, under a name of their own")
    args = parser.parse_args()
    deadline = time.monotonic() + 60 * args.minutes
    plans = [plan for plan in single_losses() + double_losses() if not args.only or args.only in plan.name]
    if args.first:
        plans = [replace(plan, name=f"{plan.name}-{args.first}", cases=plan.cases[: args.first]) for plan in plans]
    results, failed, fork_server = [], [], SharedForkServer()
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        for plan in plans:
            if time.monotonic() > deadline and not (args.folder / f"{plan.name}.json").exists():
                failed.append(f"{plan.name}: not begun, the time is over")
                continue
            try:
                results.append(run_plan(plan, args.folder, fork_server))
            except DeadPoolError as error:
                failed.append(f"{plan.name}: {error}")
    finally:
        fork_server.close()
    print(table(results))
    (args.folder / "coded.json").write_text(json.dumps(results, indent=2) + "\n")
    if failed or not all(map(is_good, results)):
        sys.exit("\n".join(failed) or "not all was survived bit for bit")


if __name__ == "__main__":
    main()
