"""A job under test whose script stops where the test wants it, and what an undisturbed run of it gives.

How fast the machine is does not matter. Where a test needs a version, it waits for it while ranks stand at a gate
before the optimizer, so that its capture is taken. Where it needs a moment, the job cannot pass it before the test has
acted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import sizes
from unprotected import run_ranks

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results
from deadpool_lab.workload.run import LIMIT_S, SCRIPT, WorkloadTrial, pause

STEPS = 8
EVERY_STEP = {"overhead_budget": 0.0, "hang_timeout_s": LIMIT_S}
"""Tests that count redone steps need every version; on a busy machine 0.5 % of these short steps is nothing. And a job
that stands at a gate does not hang, however long the test has to wait for something meanwhile."""
SMALL = sizes.GATED
NOISE = [
    "--dropout",
    "0.1",
    "--clip",
    "1.0",
]  # in every run: equal losses prove that the state of the RNG came back too
ACTS_SCRIPT = Path(__file__).with_name("acts.py")
LOADING = 1000  # the gate of acts.py at which a newcomer stands while it loads its state
ENDED = 2000  # and the one after the script's last line


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
class GatedJob:
    """A trial with gates. `acts` are what happens in the script (see acts.py)."""

    config: JobConfig
    layout: str
    acts: str
    folder: Path
    fork_server: SharedForkServer
    script: Path = ACTS_SCRIPT
    arguments: list[str] | None = None  # of a script that is not the workload
    trial: WorkloadTrial = field(init=False)

    def __post_init__(self) -> None:
        if not self.config.rehearsals:  # else it would depend on the machine's memory which ranks are rehearsed
            self.config = dataclasses.replace(self.config, rehearsals=1)
        gates = self.folder / "gates"
        gates.mkdir(parents=True)
        environment = {"E2E_ACTS": self.acts, "E2E_GATES": str(gates)}
        arguments = workload(self.layout) if self.arguments is None else self.arguments
        self.trial = WorkloadTrial(
            self.config,
            arguments,
            self.folder,
            script=self.script,
            environment=environment,
            fork_server=self.fork_server,
        )

    def await_gate(self, gate: int | str) -> int:
        """Until a rank stands at this gate, which bears the number of its step if it stands in one. Returns its process
        id."""
        reached = self.folder / "gates" / f"reached-{gate}"
        self.trial.await_true(reached.exists, f"the gate of step {gate}")
        return int(reached.read_text())

    def open_gate(self, gate: int | str) -> None:
        pause(f"opening gate {gate}")
        (self.folder / "gates" / f"open-{gate}").touch()

    def kill_node_at_gate(self, node: str, gate: int, *, committed: bool = True) -> None:
        """When the version of the gate's step is committed: else how many steps are lost, and whether all of them are,
        would depend on how fast the machine is."""
        self._await_moment(gate, committed)
        self.trial.job.kill_node(node)
        self.open_gate(gate)

    def kill_trainer_at_gate(self, gate: int, *, committed: bool = True) -> None:
        """The one that stands there."""
        os.kill(self._await_moment(gate, committed), signal.SIGKILL)
        self.open_gate(gate)

    def _await_moment(self, gate: int, committed: bool) -> int:
        pid = self.await_gate(gate)
        if committed:
            self.await_committed(gate)
        return pid

    def open_committed_gate(self, gate: int) -> None:
        """What happens behind it finds the version of its step everywhere."""
        self._await_moment(gate, committed=True)
        self.open_gate(gate)

    def open_gate_after_fault(self, gate: int) -> None:
        """For a fault at a moment of this step's version that no rank waits for: the job cannot pass it."""
        self.await_gate(gate)
        self.trial.await_event("fault")
        self.open_gate(gate)

    def kill_nodes_at_once(self, nodes: Iterable[str]) -> None:
        """The coordinator stands still meanwhile: it learns of all of them together, however slow this process is."""
        with self.coordinator_suspended():
            for node in nodes:
                self.trial.job.kill_node(node)

    @contextlib.contextmanager
    def coordinator_suspended(self) -> Iterator[psutil.Process]:
        process = self.trial.job.coordinator
        assert process is not None
        coordinator = psutil.Process(process.pid)
        coordinator.suspend()
        try:
            yield coordinator
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                coordinator.resume()

    def status(self) -> dict[str, Any]:
        return ask(self.trial.job.run_dir, "status")

    def await_committed(self, version: int) -> None:
        """That version, or a newer one. It comes for certain if every rank stands in its step, before the optimizer."""

        def is_committed() -> bool:
            watermark = self.status()["watermark"]
            return watermark is not None and watermark >= version

        self.trial.await_true(is_committed, f"version {version}")

    def await_drain(self, stage: str = "stopping") -> None:
        """`stopping`: a spare is ready, and all ranks have been sent the order to stop at the next boundary."""
        self.trial.await_true(lambda: (self.status()["drain"] or {}).get("stage") == stage, f"a drain that is {stage}")

    def await_bytes_pushed(self, at_least: int = 1) -> int:
        """What the busiest node has sent to its holders; nodes tell with their heartbeats."""
        self.trial.await_true(lambda: self._bytes_pushed() >= at_least, f"{at_least} bytes sent")
        return self._bytes_pushed()

    def _bytes_pushed(self) -> int:
        return max(node.get("bytes_pushed", 0) for node in self.status()["nodes"])

    def await_rank_figures(self) -> list[dict[str, Any]]:
        """Of every rank, once it has pushed a version with optimizer state in it."""
        self.trial.await_true(
            lambda: all((rank.get("pushed_version") or 0) > 1 for rank in self.status()["ranks"]), "figures"
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
