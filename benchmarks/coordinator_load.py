"""Measures the coordinator process with thousands of real connections: the cost of heartbeats, and the time to a plan.

    python benchmarks/coordinator_load.py --nodes 4096 --json out/coordinator_load.json

`deadpool coordinator` runs in its own process on its own processor. Its agents are fakes in a few more processes on the
other processors (fake_agents.py), which answer a fence at once and a plan after a second. The run has handshakes,
joins, a plan, two committed versions, heartbeats at the default interval, and the loss of one node. `share_of_a_core`
is the CPU time of the coordinator's process divided by the elapsed time. `fault_to_last_plan_s` counts from the cut of
the node's link until the last agent has its plan, so it includes the work of the fakes; `fault_to_last_go_s` includes
the second that they take for a plan. `coordinator_cpu_s` and bytes are those from the fault until the last Go was seen,
heartbeats included.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from output import give_out

from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.control.launch.run_dir import RunDir
from deadpool.control.loops import raise_file_limit
from deadpool.errors import ConfigError

HEARTBEATS_S = 15.0
TIMEOUT_S = 180.0
HERE = Path(__file__).parent


class Load:
    def __init__(self, nodes: int, per_node: int, processes: int, folder: Path, stack: ExitStack) -> None:
        self._nodes, self._per_node, self._folder = nodes, per_node, folder
        self._processes, self._stack = processes, stack
        self._crowds: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "deadpool.cli.main", "coordinator", "--nodes", str(self._nodes), "--quiet"]
        command += ["--nproc-per-node", str(self._per_node), "--run-dir", str(self._folder)]
        coordinator = subprocess.Popen(command)
        self._stack.callback(_end, coordinator)
        self.coordinator = psutil.Process(coordinator.pid)
        first, *others = sorted(self.coordinator.cpu_affinity())
        self.coordinator.cpu_affinity([first])
        _wait(lambda: _is_announced(self._folder), "the coordinator to listen")
        bounds = [index * (self._nodes + 1) // self._processes for index in range(self._processes + 1)]
        for first, last in itertools.pairwise(bounds):
            shape = [str(number) for number in (first, last, self._nodes, self._per_node)]
            crowd = subprocess.Popen(
                [sys.executable, str(HERE / "fake_agents.py"), str(self._folder), *shape],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._stack.callback(_end, crowd)
            psutil.Process(crowd.pid).cpu_affinity(others or [first])
            self._crowds.append(crowd)

    def ask(self, order: str, crowds: list[subprocess.Popen[str]] | None = None) -> list[dict[str, Any]]:
        asked = self._crowds if crowds is None else crowds
        for crowd in asked:
            assert crowd.stdin is not None
            crowd.stdin.write(order + "\n")
            crowd.stdin.flush()
        return [json.loads(crowd.stdout.readline()) for crowd in asked if crowd.stdout is not None]

    def count(self, what: str) -> int:
        return sum(answer["counts"].get(what, 0) for answer in self.ask("report"))

    def cpu_s(self) -> float:
        times = self.coordinator.cpu_times()
        return float(times.user + times.system)

    def heartbeats(self) -> dict[str, float]:
        began, cpu_s = time.monotonic(), self.cpu_s()
        time.sleep(HEARTBEATS_S)
        elapsed_s, spent_s = time.monotonic() - began, self.cpu_s() - cpu_s
        return {
            "share_of_a_core": round(spent_s / elapsed_s, 4),
            "cpu_us_each": round(1e6 * spent_s / elapsed_s / self._nodes, 1),
        }

    def lose(self) -> dict[str, float]:
        """Cuts the link of a node of the first process. The plan that follows goes to all other nodes and the spare."""
        self.ask("clear")
        cpu_s = self.cpu_s()
        lost = self.ask("lose n1", self._crowds[:1])[0]["lost"]
        _wait(lambda: self.count("plan") >= self._nodes, "the last plan")
        last_plan = max(answer["last"]["plan"] for answer in self.ask("report"))
        _wait(lambda: self.count("go") >= self._nodes, "the last go")
        spent_s, answers = self.cpu_s() - cpu_s, self.ask("report")
        last_go = max(answer["last"]["go"] for answer in answers)
        return {
            "fault_to_last_plan_s": round(last_plan - lost, 3),
            "fault_to_last_go_s": round(last_go - lost, 3),
            "coordinator_cpu_s": round(spent_s, 3),
            "bytes_in": sum(answer["bytes"]["sent"] for answer in answers),
            "bytes_out": sum(answer["bytes"]["received"] for answer in answers),
            **self._events(),
        }

    def memory_bytes(self) -> int:
        return int(self.coordinator.memory_info().rss)

    def _events(self) -> dict[str, float]:
        """Returns times by the coordinator's own clock."""
        lines = [json.loads(line) for line in (self._folder / "events.jsonl").read_text().splitlines()]
        fault = next(line["t"] for line in lines if line["what"] == "fault")
        later = {line["what"]: line["t"] - fault for line in lines if line["t"] >= fault}
        return {f"fault_to_{what}_s": round(later[what], 3) for what in ("fenced", "planned", "go") if what in later}


def _is_announced(folder: Path) -> bool:
    try:
        RunDir(folder).coordinator()
    except ConfigError:
        return False
    return True


def _wait(done: Any, what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < deadline, f"waited {TIMEOUT_S:g} s for {what}"
        time.sleep(0.2)


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()


def measure(nodes: int, per_node: int, processes: int) -> dict[str, Any]:
    raise_file_limit()
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("load"))
        load = Load(nodes, per_node, processes, folder, stack)
        began = time.monotonic()
        load.start()
        empty_bytes = load.memory_bytes()
        _wait(lambda: load.count("go") >= nodes, "the job to begin")
        started_s = time.monotonic() - began
        time.sleep(5.0)  # until agents have reported the copies of the first versions
        heartbeats = load.heartbeats()
        full_bytes = load.memory_bytes()
        loss = load.lose()
    return {
        "nodes": nodes,
        "nproc_per_node": per_node,
        "connections": nodes + 1,
        "start_s": round(started_s, 2),
        "memory_bytes_per_connection": (full_bytes - empty_bytes) // (nodes + 1),
        "heartbeats": heartbeats,
        "loss": loss,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4096)
    parser.add_argument("--nproc-per-node", type=int, default=8)
    parser.add_argument("--processes", type=int, default=4, help="number of processes for the fake agents")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report = measure(arguments.nodes, arguments.nproc_per_node, arguments.processes)
    give_out(report, arguments.json)


if __name__ == "__main__":
    main()
