"""A DeadPool job that alice has submitted to a Slurm testbed: what it does, and what an undisturbed run of it gives."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_config import ClusterShape
from slurm_testbed import SlurmTestbed

from deadpool.control.coordinator.announcement import ask
from deadpool.control.launch.run_dir import RunDir
from deadpool.demo.trial import Results, differences
from deadpool.errors import DeadPoolError
from deadpool.events.event import read_events
from deadpool.host.child_processes import join_network
from deadpool_lab.workload.run import SCRIPT

HOME = "/home/alice"
OWN_CHECKPOINTS = Path(__file__).with_name("checkpoint_script.py")
SMALL = ["--layers", "2", "--width", "64", "--sequence", "32", "--vocabulary", "256", "--dropout", "0.1"]
STEPS = 20_000  # of the schedule; the file --stop ends the script long before
_POLL_S = 0.3


@contextlib.contextmanager
def slurm_testbed(folder: Path, shape: ClusterShape, *, life_s: float = 1200.0) -> Iterator[SlurmTestbed]:
    testbed = SlurmTestbed(folder, shape, life_s=life_s)
    testbed.start()
    try:
        yield testbed
    finally:
        testbed.stop()


@dataclasses.dataclass(slots=True)
class SlurmJob:
    testbed: SlurmTestbed
    name: str = "run"  # of its folders in alice's home
    job_id: str = ""
    times: list[tuple[str, float]] = dataclasses.field(default_factory=list)

    # --- folders, as seen from outside --------------------------------------------------------------------------------

    @property
    def run_folder(self) -> Path:
        return self.testbed.home / self.name

    @property
    def out(self) -> Path:
        return self.testbed.home / f"{self.name}-out"

    @property
    def stop_file(self) -> Path:
        return self.testbed.home / f"{self.name}-stop"

    # --- start --------------------------------------------------------------------------------------------------------

    def workload(self) -> str:
        """The words after `deadpool slurm submit ...`, as alice's shell takes them."""
        out, stop = f"{HOME}/{self.out.name}", f"{HOME}/{self.stop_file.name}"
        return shlex.join([str(SCRIPT), "--out", out, "--stop", stop, "--steps", str(STEPS), *SMALL])

    def submit(self, options: str) -> None:
        """Without a recovery that is played: tests count faults, and steps that are done again."""
        own = f"--run-dir {shlex.quote(self.name)} --no-rehearse-recovery"
        self.alice(f"deadpool slurm submit {own} {options} {self.workload()}")
        self.note_id()

    def submit_with_own_checkpoints(self, options: str) -> None:
        """A script that saves checkpoints of its own and goes on from them, for jobs that are requeued."""
        self.alice(f"mkdir {shlex.quote(self.out.name)}")
        script = shlex.join([str(OWN_CHECKPOINTS), f"{HOME}/{self.out.name}", f"{HOME}/{self.stop_file.name}"])
        self.alice(f"PACE_S=0.1 deadpool slurm submit --run-dir {shlex.quote(self.name)} {options} {script}")
        self.note_id()

    def note_id(self) -> None:
        self.job_id = self.alice("squeue -h --me -o %i").split()[0]

    def alice(self, command: str, *, check: bool = True) -> str:
        return self.testbed.run(command, user="alice", folder=HOME, check=check)

    def root(self, command: str, *, check: bool = True) -> str:
        return self.testbed.run(command, check=check)

    # --- what is seen of it -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Empty while no coordinator answers. Asked by a thread inside of the cluster's network: the command itself
        takes seconds of a busy machine to start."""
        found: list[dict[str, Any]] = []

        def look() -> None:
            join_network(Path(f"/proc/{self.testbed.init}/ns/net"))
            with contextlib.suppress(DeadPoolError, OSError):
                found.append(ask(RunDir(self.run_folder), "status"))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return found[0] if found else {}

    def events(self, what: str | None = None) -> list[dict[str, Any]]:
        records = read_events(self.run_folder / "events.jsonl")
        return [record for record in records if what is None or record["what"] == what]

    def nodes(self, role: str) -> list[str]:
        return [node["node"] for node in self.status().get("nodes", ()) if node["role"] == role]

    def spare_jobs(self) -> dict[str, tuple[str, str]]:
        """State and node of each one-node job that waits or runs, by id."""
        lines = self.alice(f"squeue -h --me --name=deadpool-spare-{self.job_id} -o '%i %T %N'").splitlines()
        words = [[*line.split(), ""][:3] for line in lines]
        return {job_id: (state, node) for job_id, state, node in words}

    def slurm_state(self, job_id: str | None = None) -> str:
        return self.alice(f"squeue -h -t all -j {job_id or self.job_id} -o %T", check=False).strip()

    def results(self) -> Results:
        return Results.read(self.out)

    # --- waiting, always bounded --------------------------------------------------------------------------------------

    def until(self, ready: Callable[[], Any], what: str, timeout_s: float = 600.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := ready()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come within {timeout_s:g} s:\n{self.report()}")
            time.sleep(_POLL_S)
        return found

    def await_step(self, step: int, timeout_s: float = 600.0) -> None:
        self.until(lambda: self.out.exists() and self.results().newest_step() >= step, f"step {step}", timeout_s)

    def await_protected(self, *, spares: int, timeout_s: float = 600.0) -> None:
        """Until training runs, with every copy in place and so many spares that have rehearsed."""

        def is_protected() -> bool:
            status = self.status()
            parked = [
                node
                for node in status.get("nodes", ())
                if node["role"] == "spare" and any(trainer["state"] == "parked" for trainer in node["trainers"])
            ]
            return status.get("phase") == "running" and status["protected"] and len(parked) >= spares

        self.until(is_protected, f"protection with {spares} spares", timeout_s)

    def survive(self, what: str, happen: Callable[[], Any], ready: Callable[[], Any], timeout_s: float = 600.0) -> None:
        """Makes something happen, and notes how long it takes until `ready`, and until every rank trains again."""
        began = time.monotonic()
        happen()
        self.until(ready, what, timeout_s)
        seen_s = time.monotonic() - began
        self.await_step(self.results().newest_step() + 2)
        self.times += [(what, seen_s), (f"{what}: every rank two steps further", time.monotonic() - began)]

    def report(self) -> str:
        nodes = [(node["node"], node["role"], node["trainers"]) for node in self.status().get("nodes", ())]
        parts = [self.root("squeue; sinfo", check=False), *map(str, nodes)]
        paths = [self.run_folder / "slurm.out", self.run_folder / "spares.out"]
        paths += sorted((self.run_folder / "logs").glob("*.log"))
        for path in paths:
            if path.exists():
                parts.append(f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}")
        return "\n".join(parts)

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self, *, state: str = "COMPLETED", timeout_s: float = 600.0) -> None:
        """Lets the script end some steps from now, and waits for Slurm to know it."""
        draft = self.stop_file.with_suffix(".new")
        draft.write_text(str(self.results().newest_step() + 40))
        draft.chmod(0o644)
        draft.replace(self.stop_file)
        began = time.monotonic()
        self.await_state(state, timeout_s)
        self.times.append((f"from the wish to stop, 40 steps before the end, to {state}", time.monotonic() - began))
        last = max(step.ended for steps in self.results().steps.values() for step in steps)
        self.times.append((f"from the last step to {state}", time.time() - last))

    def await_state(self, state: str, timeout_s: float = 600.0) -> None:
        self.until(lambda: self.slurm_state() == state, f"state {state}", timeout_s)

    def assert_bit_identical(self, world_size: int) -> None:
        """Against torchrun, undisturbed and without DeadPool, stopped at the same step."""
        reference = self.testbed.folder / "reference"
        arguments = ["--out", str(reference), "--stop", str(self.stop_file), "--steps", str(STEPS), *SMALL]
        self._assert_same_under_torchrun(world_size, reference, [str(SCRIPT), *arguments])

    def assert_bit_identical_with_own_checkpoints(self, world_size: int) -> None:
        """The same, where submit_with_own_checkpoints() has begun it."""
        reference = self.testbed.folder / "reference"
        reference.mkdir()
        script = [str(OWN_CHECKPOINTS), str(reference), str(self.stop_file)]
        self._assert_same_under_torchrun(world_size, reference, script)

    def _assert_same_under_torchrun(self, world_size: int, reference: Path, script: list[str]) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world_size}", *script],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout
        expected = Results.read(reference)
        assert len(expected.losses) == world_size and len(expected.losses[0]) > 0
        assert differences(expected, self.results()) == []
        shutil.rmtree(reference)

    def assert_nothing_left(self) -> None:
        """Neither in Slurm's queue, nor a process of alice's on any node."""
        self.until(lambda: self.alice("squeue -h --me") == "", "an empty queue")
        self.until(lambda: self.alices_processes() == "", "the end of all processes of alice")

    def alices_processes(self) -> str:
        """Of all nodes: their process ids are below those of the testbed. The command itself is root's."""
        return self.root("ps -u alice -o pid=,args=", check=False).strip()

    def print_times(self, title: str) -> None:
        print(f"\n{title}")
        for what, seconds in self.times:
            print(f"  {seconds:7.1f} s  {what}")
