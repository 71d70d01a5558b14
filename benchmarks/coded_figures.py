"""Measures what each scheme of protection costs in the same job: memory, bytes on the wire, CPU time, a recovery.

    python benchmarks/coded_figures.py --json out/coded_figures.json

The job has 10 nodes with one rank each and one warm spare; rs(4,1) has two groups of five in it, rs(8,2) one of ten.
Its state of about 320 MB is sharded by FSDP2, some 32 MB per rank: eight pieces, as many as rs(8,2) has data blocks.
Figures are taken over four steps, each of which is captured; then the node whose rank the spare has rehearsed is
killed. `held` is what a node keeps for others, `prepare` the phase of the recovery in which the newcomer fetches or
rebuilds its state and loads it. All schemes run one after the other; what is told is the worst of --runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

import coded
from output import give_out

from deadpool.config.job_config import JobConfig
from deadpool.control.coordinator.announcement import ask
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool_lab.workload.run import WorkloadTrial

SCHEMES = ("copies=1", "copies=2", "rs(4,1)", "rs(8,2)")
NODES = 10
FIRST, LAST = 4, 8  # gates between which figures are taken; by the first all state has its final size
STEPS = LAST + 2
MORE = ["--vocabulary", "49152"]
WAIT_S = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Measurement:
    def __init__(self, scheme: str, folder: Path, fork_server: SharedForkServer) -> None:
        self.folder, self.gates = folder, folder / "gates"
        self.gates.mkdir(parents=True)
        config = JobConfig(nodes=NODES, spares=1, protect=scheme, overhead_budget=0.0, rehearsals=1)
        self.trial: WorkloadTrial = coded.trial(config, STEPS, folder, self.gates, fork_server, MORE)
        self.seen: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        self.trial.run(lambda _: self._measure())
        (recovery,) = self.trial.recoveries()
        return {**self.seen, "phases_s": recovery.phases_s, "first_step_s": recovery.first_step_s}

    def _measure(self) -> None:
        self._open(2)
        before = self._figures_at(FIRST)
        for gate in range(FIRST, LAST, 2):
            self._open(gate)
        after = self._figures_at(LAST)
        steps, status = LAST - FIRST, after["status"]
        active = [node for node in status["nodes"] if node["role"] == "active"]
        self.seen = {
            "snapshot_mb": statistics.mean(_snapshot_bytes(rank) for rank in status["ranks"]) / 1e6,
            "arena_mb_per_node": statistics.mean(node["arena_bytes"] for node in active) / 1e6,
            "wire_mb_per_rank_and_step": statistics.mean(rank["wire_bytes_per_step"] for rank in status["ranks"]) / 1e6,
            "sent_mb_per_rank_and_step": (after["sent"] - before["sent"]) / steps / NODES / 1e6,
            "agent_cpu_s_per_node_and_step": (after["cpu_s"] - before["cpu_s"]) / steps / NODES,
        }
        rehearsed = [event["rank"] for event in self.trial.events() if event["what"] == "rehearsed"]
        self.trial.job.kill_node(f"n{rehearsed[-1]}")
        self._open(LAST)

    def _figures_at(self, gate: int) -> dict[str, Any]:
        """Once everything is committed and told: nodes tell figures with their heartbeats."""
        self.trial.await_true((self.gates / f"reached-{gate}").exists, f"gate {gate}", WAIT_S)
        self.trial.await_true(lambda: self._is_settled(gate), f"version {gate} and a warm spare", WAIT_S)
        status = ask(self.trial.job.run_dir, "status")
        return {
            "status": status,
            "sent": sum(node["bytes_pushed"] for node in status["nodes"] if node["role"] == "active"),
            "cpu_s": sum(cpu_s(self.trial.job.nodes[f"n{index}"].pid) for index in range(NODES)),
        }

    def _is_settled(self, version: int) -> bool:
        status = ask(self.trial.job.run_dir, "status")
        told = [rank.get("pushed_version") or 0 for rank in status["ranks"]]
        warm = [node for node in status["nodes"] if node["role"] == "spare" and coded.is_warm(node)]
        rehearsed = any(event["what"] == "rehearsed" for event in self.trial.events())
        return status["watermark"] == version and min(told) >= version and bool(warm) and rehearsed

    def _open(self, gate: int) -> None:
        (self.gates / f"open-{gate}").touch()


def _snapshot_bytes(rank: dict[str, Any]) -> int:
    return int(rank["unique_bytes"] + rank["replica_bytes"] + rank["record_bytes"])


def add_ratios(result: dict[str, dict[str, Any]]) -> None:
    """Half of the arena of copies=1 is a node's own snapshots, which it has under every scheme."""
    own = result["copies=1"]["arena_mb_per_node"] / 2
    for seen in result.values():
        seen["held_mb_per_node"] = seen["arena_mb_per_node"] - own
        seen["held_to_one_copy"] = seen["held_mb_per_node"] / own
        seen["wire_to_one_copy"] = seen["sent_mb_per_rank_and_step"] / result["copies=1"]["sent_mb_per_rank_and_step"]


def worst(runs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    return {
        scheme: {
            **{
                name: round(max(run[scheme][name] for run in runs), 3) for name in runs[0][scheme] if name != "phases_s"
            },
            "prepare_s": [round(run[scheme]["phases_s"]["prepare"], 3) for run in runs],
        }
        for scheme in runs[0]
    }


def table(found: dict[str, Any]) -> str:
    columns = (
        ("held_mb_per_node", "held MB/node"),
        ("held_to_one_copy", "of one copy"),
        ("sent_mb_per_rank_and_step", "sent MB/rank/step"),
        ("wire_to_one_copy", "of one copy"),
        ("agent_cpu_s_per_node_and_step", "agent CPU s/node/step"),
        ("first_step_s", "recovery s"),
    )
    lines = ["scheme    " + "  ".join(title for _, title in columns) + "  prepare s, each run"]
    for scheme, seen in found.items():
        cells = "  ".join(f"{seen[name]:>{len(title)}.2f}" for name, title in columns)
        lines.append(f"{scheme:<10}{cells}  {seen['prepare_s']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    runs, fork_server = [], SharedForkServer()
    try:
        for number in range(args.runs):
            result = {}
            for scheme in SCHEMES:
                with temporary_folder("deadpool-benchmark-") as folder:
                    result[scheme] = Measurement(scheme, folder, fork_server).run()
                print(f"[{number + 1}/{args.runs}] {scheme}: {result[scheme]}", flush=True)
            add_ratios(result)
            runs.append(result)
            give_out({"worst": worst(runs), "runs": runs}, args.json)
    finally:
        fork_server.close()
    print(table(worst(runs)))


if __name__ == "__main__":
    main()
