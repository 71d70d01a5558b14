"""A job under test whose script stops where the test wants it, and what an undisturbed run of it gives."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sizes
from unprotected import run_ranks

from deadpool.cli.job_client import ask
from deadpool.config import JobConfig
from deadpool.control.fork_client import SharedForkServer
from deadpool.workload.harness import SCRIPT, WorkloadTrial
from deadpool.workload.jitter import pause
from deadpool.workload.results import Results

STEPS = 8
EVERY_STEP = {"overhead_budget": 0.0}
"""Tests that count redone steps need every version; on a busy machine 0.1 % of these short steps is nothing."""
SMALL = sizes.STAGE
NOISE = [
    "--dropout",
    "0.1",
    "--clip",
    "1.0",
]  # in every run: equal losses prove that the state of the RNG came back too
SCENE = Path(__file__).with_name("scene.py")


def workload(layout: str, *more: str) -> list[str]:
    return ["--layout", layout, "--steps", str(STEPS), *SMALL, *NOISE, *more]


def run_unprotected(layout: str, world_size: int, folder: Path) -> Results:
    """The same workload, unchanged, without DeadPool."""
    return run_script_unprotected(SCRIPT, workload(layout), world_size, folder)


def run_script_unprotected(script: Path, arguments: list[str], world_size: int, folder: Path) -> Results:
    folder.mkdir()
    run_ranks(script, ["--out", str(folder / "out"), *arguments], world_size, folder / "console.log")
    return Results.read(folder / "out")


@dataclass(slots=True)
class Stage:
    """A trial with gates. `scene` is what happens in the script (see scene.py)."""

    config: JobConfig
    layout: str
    scene: str
    folder: Path
    fork_server: SharedForkServer
    script: Path = SCENE
    arguments: list[str] | None = None  # of a script that is not the workload
    trial: WorkloadTrial = field(init=False)

    def __post_init__(self) -> None:
        gates = self.folder / "gates"
        gates.mkdir(parents=True)
        environment = {"E2E_SCENE": self.scene, "E2E_GATES": str(gates)}
        arguments = workload(self.layout) if self.arguments is None else self.arguments
        self.trial = WorkloadTrial(
            self.config,
            arguments,
            self.folder,
            deadline_s=90.0,
            script=self.script,
            environment=environment,
            fork_server=self.fork_server,
        )

    def await_gate(self, step: int) -> int:
        """Until a rank stands at the gate of this step. Returns its process id."""
        reached = self.folder / "gates" / f"reached-{step}"
        self.trial.await_true(reached.exists, f"the gate of step {step}", 60.0)
        return int(reached.read_text())

    def open_gate(self, step: int) -> None:
        pause(f"opening gate {step}")
        (self.folder / "gates" / f"open-{step}").touch()

    def kill_node_at_gate(self, node: str, step: int) -> None:
        self.await_gate(step)
        self.trial.job.kill_node(node)
        self.open_gate(step)

    def kill_trainer_at_gate(self, step: int) -> None:
        os.kill(self.await_gate(step), signal.SIGKILL)
        self.open_gate(step)

    def status(self) -> dict[str, Any]:
        return ask(self.trial.job.run_dir, "status")

    def await_committed(self, version: int) -> None:
        self.trial.await_true(lambda: (self.status()["watermark"] or 0) >= version, f"version {version}", 30.0)

    def await_bytes_pushed(self, at_least: int = 1) -> int:
        """What the busiest node has sent to its holders; nodes tell with their heartbeats."""
        self.trial.await_true(lambda: self._bytes_pushed() >= at_least, f"{at_least} bytes sent", 30.0)
        return self._bytes_pushed()

    def _bytes_pushed(self) -> int:
        return max(node.get("bytes_pushed", 0) for node in self.status()["nodes"])

    def await_rank_figures(self) -> list[dict[str, Any]]:
        """Of every rank, once it has pushed a version with optimizer state in it."""
        self.trial.await_true(
            lambda: all((rank.get("pushed_version") or 0) > 1 for rank in self.status()["ranks"]), "figures", 30.0
        )
        return list(self.status()["ranks"])

    def events(self, what: str) -> list[dict[str, Any]]:
        return [event for event in self.trial.events() if event["what"] == what]

    def trainers(self) -> dict[int, str]:
        """Which process of which node did the first step after the last recovery as which rank."""
        resumed = {event["rank"]: event for event in self.events("resumed")}
        return {rank: event["trainer"] for rank, event in sorted(resumed.items())}

    def seats(self) -> list[str]:
        """Who holds which position in the end."""
        return list(self.events("planned")[-1]["seats"])
