"""Compares what DeadPool says of a lost coordinator's node with a clock outside of it, and prints the differences.

    python benchmarks/lost_coordinator_clock.py --runs 3 --json out/clock.json

In each case the first coordinator is lost together with the node of rank 0, in the middle of a step, and a standby
takes over:

    killed  all their processes get SIGKILL
    two     the nodes of ranks 0 and 1 do
    silent  all their processes get SIGSTOP, as on a machine that hangs: connections stay, and nobody speaks any more

The outside clock is when the signal was sent here, and what ranks have written at their steps: a recovery lasts until
every rank has ended a step that began after it, training stands until the first rank begins one, and goodput is what
is left of the time since the first step without that stop and without steps that were done twice. It is compared with
`deadpool show story --json`, the page of `deadpool show report`, the coordinator's /metrics, and `goodput()` of the
events.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from output import give_out

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.views.metrics.folds import JobFold
from deadpool_lab.workload.run import WorkloadTrial

SCRIPT = Path(__file__).with_name("lost_coordinator_script.py")
LIMIT_S = 300.0
AT_STEP = 20  # steps before the fault
AFTER = 20  # and after the recovery, so that the time of a start and of an end is a small part of the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    lost: tuple[str, ...]
    nodes: int
    signal: signal.Signals


CASES = {
    "killed": Case(lost=("n0",), nodes=3, signal=signal.SIGKILL),
    "two": Case(lost=("n0", "n1"), nodes=5, signal=signal.SIGKILL),
    "silent": Case(lost=("n0",), nodes=3, signal=signal.SIGSTOP),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What happened, as the files of the ranks have it."""

    lost_at: float
    steps: dict[int, list[dict[str, float]]]

    @property
    def began(self) -> float:
        return min(lines[0]["began"] for lines in self.steps.values())

    @property
    def went_on(self) -> float:
        """When the first rank began a step again."""
        return min(line["began"] for line in self._first_new())

    @property
    def first_step_s(self) -> float:
        return max(line["ended"] for line in self._first_new()) - self.lost_at

    @property
    def stopped_s(self) -> float:
        return self.went_on - self.lost_at

    def lost_s(self) -> float:
        """With the steps that were done again: of these the first time is lost."""
        lines = self.steps[max(self.steps)]
        again = len(lines) - len({line["step"] for line in lines})
        return self.stopped_s + again * statistics.median(line["ended"] - line["began"] for line in lines)

    def goodput(self, until: float | None = None) -> float:
        """Until the last step ended, unless another time is given."""
        return 1.0 - self.lost_s() / ((until or self.ended) - self.began)

    @property
    def ended(self) -> float:
        return max(lines[-1]["ended"] for lines in self.steps.values())

    def _first_new(self) -> list[dict[str, float]]:
        """Of each rank. A step that a rank began after the fault and before the recovery could not be completed, as a
        rank was missing in its all-reduce: no line tells of it."""
        return [next(line for line in lines if line["began"] > self.lost_at) for lines in self.steps.values()]


def read_steps(folder: Path) -> dict[int, list[dict[str, float]]]:
    return {
        int(path.stem.removeprefix("rank")): [json.loads(line) for line in path.read_text().splitlines()]
        for path in folder.glob("rank*.jsonl")
    }


def free_ports(count: int) -> int:
    """The first of so many in a row. Whoever takes one of them meanwhile makes the run void, and is told of."""
    for first in range(21000, 60000, 97):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise SystemExit("no ports are free")


def await_here(ready: Callable[[], Any], what: str) -> Any:
    """Without the launcher, which would start the coordinator again: its machine is gone."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come within {LIMIT_S:g} s")
        time.sleep(0.02)
    return found


def lose(trial: WorkloadTrial, case: Case) -> float:
    """At once as far as that can be: the coordinator is stopped first, so that it sees nothing of the rest."""
    coordinator = trial.job.coordinator
    assert coordinator is not None
    coordinator.send_signal(signal.SIGSTOP)
    at = time.time()
    for node in case.lost:
        os.killpg(trial.job.nodes[node].pid, case.signal)
    if case.signal == signal.SIGKILL:
        coordinator.kill()
    sent_s = time.time() - at
    killed = [coordinator, *(trial.job.nodes[node] for node in case.lost)] if case.signal == signal.SIGKILL else []
    await_here(lambda: all(process.poll() is not None for process in killed), "the end of what was killed")
    print(f"signals were sent within {sent_s:.3f} s, and obeyed after {time.time() - at:.3f} s", flush=True)
    return at


def newest_common_step(out: Path) -> int:
    """Whole lines only: the last one may still be being written."""
    counts = [text.count("\n") for text in (path.read_text() for path in out.glob("rank*.jsonl"))]
    return min(counts, default=0)


def scrape(ports: range) -> tuple[float, dict[str, float]]:
    """When, and what the coordinator shows that leads: standbys show nothing of the job."""
    for port in ports:
        with contextlib.suppress(OSError):
            at = time.time()  # of this one: a coordinator that is stopped does not answer for a while
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
            found = dict(re.findall(r"^(deadpool_\w+) ([-+.e\d]+)$", text, re.MULTILINE))
            if "deadpool_goodput_ratio" in found:
                return at, {name: float(value) for name, value in found.items()}
    raise SystemExit("no coordinator shows metrics of the job")


def said_by(*words: object) -> str:
    command = [sys.executable, "-m", "deadpool.cli.main", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def page_of(run: Path, folder: Path) -> dict[str, Any]:
    """What the page of `deadpool show report` shows, from the page itself."""
    said_by("show", "report", run, "--out", folder / "report.html")
    text = (folder / "report.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None, "a page without its data"
    return dict(json.loads(found[1]))


def play(name: str, folder: Path) -> dict[str, tuple[float, float]]:
    """By figure: what DeadPool says, and what the outside clock does."""
    case = CASES[name]
    folder.mkdir()
    stop, lost = folder / "stop", len(case.lost)
    standbys = 2
    first = free_ports(1 + standbys + case.nodes + lost)
    config = JobConfig(
        nodes=case.nodes,
        spares=lost,
        rehearsals=1,
        holders=lost,
        standby_coordinators=standbys,
        overhead_budget=0.0,
        metrics_port=first,
    ).checked()
    trial = WorkloadTrial(config, ["--stop", str(stop)], folder, script=SCRIPT)
    known: dict[str, Any] = {}

    def during(running: WorkloadTrial) -> None:
        running.await_event("rehearsed", lost)
        running.await_true(lambda: newest_common_step(running.out) >= AT_STEP, f"step {AT_STEP}")
        known["coordinator"] = running.job.coordinator
        known["at"] = lose(running, case)
        await_here(
            lambda: sum(event["what"] == "resumed" for event in running.events()) >= case.nodes, "the end of a recovery"
        )
        last = newest_common_step(running.out)
        await_here(lambda: newest_common_step(running.out) >= last + AFTER, "the steps after it")
        known["scraped_at"], known["metrics"] = scrape(range(first, first + 1 + standbys))
        for node in case.lost:  # what was stopped never returns
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.job.nodes[node].pid, signal.SIGKILL)
        if case.signal == signal.SIGSTOP:
            known["coordinator"].kill()
        stop.write_text(str(last + 2 * AFTER))

    trial.run(during)
    clock = Clock(lost_at=known["at"], steps=read_steps(trial.out))
    return compare(trial, folder, clock, known)


def compare(trial: WorkloadTrial, folder: Path, clock: Clock, known: dict[str, Any]) -> dict[str, tuple[float, float]]:
    run = trial.job.run_dir.path
    (recovery,) = json.loads(said_by("show", "story", run, "--json"))
    page, metrics, fold = page_of(run, folder), known["metrics"], JobFold()
    for record in trial.events():
        fold.add(record)
    (interruption,) = page["faults"]
    (shown,) = [each["value"] for each in page["head"]["figures"] if each["name"] == "goodput"]
    share = fold.goodput(clock.ended) or 0.0
    return {
        "story: until the first new step, s": (recovery["first_step_s"], clock.first_step_s),
        "story: sum of its phases, s": (sum(recovery["phases_s"].values()), clock.first_step_s),
        "report: the interruption, s": (interruption["seconds"], clock.first_step_s),
        "report: goodput, %": (float(shown.split()[0]), 100 * clock.goodput()),
        "metrics: deadpool_recovery_seconds_sum": (metrics["deadpool_recovery_seconds_sum"], clock.first_step_s),
        "metrics: deadpool_lost_seconds_total": (metrics["deadpool_lost_seconds_total"], clock.stopped_s),
        "metrics: deadpool_goodput_ratio": (metrics["deadpool_goodput_ratio"], clock.goodput(known["scraped_at"])),
        "goodput(): the share that was lost": (1.0 - share, 1.0 - clock.goodput()),
        "goodput()": (share, clock.goodput()),
    }


def percent(said: float, outside: float) -> float:
    return 100 * (said - outside) / outside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--case", choices=tuple(CASES), action="append", help="only this one (repeatable)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    worst: dict[str, float] = {}
    runs = []
    with temporary_folder("deadpool-benchmark-") as folder:
        for number, name in ((n, name) for n in range(args.runs) for name in args.case or CASES):
            found = play(name, folder / f"{name}-{number}")
            print(f"{name}, run {number + 1}, load {os.getloadavg()[0]:.1f}")
            for what, (said, outside) in found.items():
                print(f"  {what:42} {said:9.3f}  outside {outside:9.3f}  {percent(said, outside):+6.2f} %", flush=True)
                at_most = abs(percent(said, outside))
                worst[f"{name}, {what}"] = round(max(worst.get(f"{name}, {what}", 0.0), at_most), 2)
            runs.append({"case": name, "figures": found, "load": os.getloadavg()[0]})
    give_out({"worst_percent": worst, "worst_of_all": max(worst.values()), "runs": runs}, args.json)


if __name__ == "__main__":
    main()
