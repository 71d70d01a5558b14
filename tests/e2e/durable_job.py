"""Jobs that write durable checkpoints, and what their checkpoints have to contain."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from gated_job import EVERY_STEP
from torch.distributed.checkpoint import FileSystemReader

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.durable.manifest import Manifest, complete_ones
from deadpool.durable.store import open_store
from deadpool_lab.workload.run import WorkloadTrial

SCRIPT = Path(__file__).with_name("durable_script.py")


@dataclass(slots=True)
class DurableJob:
    """One job of the script. Several may have the same checkpoints, one after the other."""

    folder: Path
    fork_server: SharedForkServer
    layout: str = "ddp"
    steps: int = 6
    step_s: float = 0.0
    where: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    trial: WorkloadTrial = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {"nodes": 2, **EVERY_STEP, "durable_every": "1h", "durable": self.where}
        settings |= {"durable_nice": 0, **self.config}  # a busy machine would hardly run it otherwise
        words = ["--layout", self.layout, "--steps", str(self.steps), "--step-s", str(self.step_s)]
        self.trial = WorkloadTrial(
            JobConfig(**settings).checked(),
            words,
            self.folder,
            script=SCRIPT,
            fork_server=self.fork_server,
        )

    def run(self) -> None:
        """To its end. If it writes checkpoints, it stands in its last step until that version is committed, so that the
        one at the end is of this version, or of the next."""
        if not self.where:
            self.trial.run()
            return
        gates, last = self.folder / "gates", self.steps - 1
        gates.mkdir()
        self.trial.job.environment |= {"E2E_GATES": str(gates), "E2E_ACTS": f"wait@{last}:0"}
        self.trial.run(lambda trial: self._pass_last_gate(trial, gates, last))

    def _pass_last_gate(self, trial: WorkloadTrial, gates: Path, last: int) -> None:
        trial.await_true((gates / f"reached-{last}").exists, "the last step")
        trial.await_true(lambda: (ask(trial.job.run_dir, "status")["watermark"] or 0) >= last, f"version {last}")
        (gates / f"open-{last}").touch()

    def kill_everything(self) -> None:
        """Coordinator, agents, trainers and writers at once."""
        job = self.trial.job
        assert job.coordinators is not None
        os.kill(job.coordinators.leading().pid, signal.SIGKILL)
        for name in job.nodes:
            job.kill_node(name)

    def losses(self) -> dict[int, dict[int, str]]:
        """By rank and step; of a step that was done again the last one."""
        found: dict[int, dict[int, str]] = {}
        for path in sorted(self.trial.out.glob("rank*.txt")):
            lines = [line.split() for line in path.read_text().splitlines()]
            found[int(path.stem.removeprefix("rank"))] = {int(step): loss for step, loss in lines}
        return found

    def expected(self, version: int, rank: int) -> dict[str, Any]:
        loaded: dict[str, Any] = torch.load(self.trial.out / f"version-{version}-rank-{rank}.pt", weights_only=True)
        return loaded

    def events(self, what: str) -> list[dict[str, Any]]:
        return [event for event in self.trial.events() if event["what"] == what]


def manifests(where: str) -> list[Manifest]:
    return complete_ones(open_store(where))


def load_whole(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, by plain torch in this one process."""
    metadata = FileSystemReader(folder).read_metadata()
    state = {
        name: torch.zeros(item.size, dtype=item.properties.dtype) for name, item in metadata.state_dict_metadata.items()
    }
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def differing(loaded: dict[str, torch.Tensor], expected: dict[str, Any]) -> list[str]:
    """Names whose tensors are missing or not bit for bit those of the rank."""
    wrong = []
    for name, (tensor, lowest) in expected.items():
        found = loaded.get(name, loaded.get(f"{name}@rank{lowest}"))
        if found is None or found.dtype != tensor.dtype or not torch.equal(found, tensor):
            wrong.append(name)
    return wrong


def await_some_checkpoint(job: DurableJob, count: int = 1) -> None:
    job.trial.await_event("checkpoint_written", count)
