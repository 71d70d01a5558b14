"""The demo: the same training twice, once undisturbed and once with a node killed in mid-step, and the two compared.

`compare` does the whole demo. `Trial` runs a training script as a job of real processes on this machine, and reads its
events and results. `Results` and `StepTime` are read from what each rank wrote, and two runs are compared bit for bit.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.errors import JobFailed
from deadpool.events.event import read_events
from deadpool.events.story import Recovery, recoveries

SCRIPT = Path(__file__).with_name("train.py")
OnProgress = Callable[[str, int], None]  # takes what is happening, and the number of steps done


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKill:
    """One kill and its recovery. Times count from the kill, by the clock of the process that killed."""

    victim: str
    killed_at: float
    recovery: Recovery

    def first_step_s(self) -> float:
        """Returns the time until every rank has done a step that began after the kill."""
        resumed_at: float = max(r["t"] for r in self.recovery.records if r["what"] == "resumed")
        return resumed_at - self.killed_at

    def survivors_kept(self) -> int:
        """Returns how many ranks went on in the process that they had."""
        return sum(record["survived"] for record in self.recovery.records if record["what"] == "restored")

    def survivors_hung(self) -> int:
        """Returns how many ranks stood in torch after the abort, and were replaced as well."""
        return sum(record["what"] == "hung" for record in self.recovery.records)

    def phases_s(self) -> dict[str, float]:
        return {**self.recovery.phases_s, "detect": self.recovery.fault["t"] - self.killed_at}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    undisturbed: Results
    disturbed: Results
    kill: NodeKill

    def differences(self) -> list[str]:
        return differences(self.undisturbed, self.disturbed)

    def summary(self) -> dict[str, Any]:
        median_step_s = self.undisturbed.median_step_s()
        return {
            "bit_identical": not self.differences(),
            "steps": len(self.undisturbed.losses[0]),
            "steps_redone": self.kill.recovery.lost_steps,
            "survivors_kept": self.kill.survivors_kept(),
            "survivors_hung": self.kill.survivors_hung(),
            "median_step_s": median_step_s,
            "first_step_s": self.kill.first_step_s(),
            "net_recovery_s": self.kill.first_step_s() - median_step_s,
            "phases_s": self.kill.phases_s(),
        }


def compare(*, layout: str, steps: int, victim: str, folder: Path, progress: OnProgress) -> Comparison:
    """Runs 4 nodes with one trainer each, with default settings; the second run also has a spare node.

    The node is killed half-way, in the middle of a step.
    """
    arguments = ["--layout", layout, "--steps", str(steps)]
    undisturbed = Trial(JobConfig(nodes=4), arguments, folder / "undisturbed", SCRIPT).run(
        lambda trial: watch(trial, steps - 1, progress, "training undisturbed")
    )
    trial = Trial(JobConfig(nodes=4, spares=1), arguments, folder / "disturbed", SCRIPT)
    killed_at: list[float] = []

    def disturb(trial: Trial) -> None:
        watch(trial, steps // 2 - 1, progress, "training again, with a spare")
        killed_at.append(kill_in_mid_step(trial, victim, undisturbed.median_step_s(), trial.config.rehearsals))
        watch(trial, steps - 1, progress, f"node {victim} was killed, training continues")

    disturbed = trial.run(disturb)
    kill = NodeKill(victim=victim, killed_at=killed_at[0], recovery=trial.recoveries()[0])
    return Comparison(undisturbed=undisturbed, disturbed=disturbed, kill=kill)


def kill_in_mid_step(trial: Trial, victim: str, step_s: float, rehearsals: int) -> float:
    """Waits for that many rehearsals, or one, then sends SIGKILL to the node in the middle of its next step. Returns
    when.

    Under a torch that lacks what a rehearsal needs, there is none to wait for.
    """

    def is_ready() -> bool:
        events = trial.events()
        done = sum(event["what"] == "rehearsed" for event in events) >= max(1, rehearsals)
        return done or any(event["what"] == "unknown_torch" and not event["rehearses"] for event in events)

    trial.await_true(is_ready, f"{rehearsals} rehearsals")
    trial.await_step(trial.results().newest_step() + 1)
    time.sleep(0.4 * step_s)
    return trial.job.kill_node(victim)


def watch(trial: Trial, step: int, progress: OnProgress, what: str) -> None:
    """Shows progress until every rank has completed `step`."""

    def reached() -> bool:
        newest = trial.results().newest_step()
        progress(what, newest + 1)
        return newest >= step

    trial.await_true(reached, f"step {step}", 180.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """`ended` is wall-clock time; `cpu_s` is the CPU time that the trainer's process had used by then."""

    step: int
    ended: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Per rank: the loss of each step (the last one if the step was redone), all steps in order, the final digest."""

    losses: dict[int, dict[int, str]]
    steps: dict[int, list[StepTime]]
    digests: dict[int, str]

    @classmethod
    def read(cls, folder: Path) -> Results:
        losses: dict[int, dict[int, str]] = {}
        done: dict[int, list[StepTime]] = {}
        digests: dict[int, str] = {}
        for path in sorted(folder.glob("rank*.jsonl")):
            rank = int(path.stem.removeprefix("rank"))
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            steps = [line for line in lines if "step" in line]
            losses[rank] = {line["step"]: line["loss"] for line in steps}
            done[rank] = [StepTime(step=s["step"], ended=s["ended"], cpu_s=s["cpu_s"]) for s in steps]
            for line in lines:
                if "digest" in line:
                    digests[rank] = line["digest"]
        return cls(losses=losses, steps=done, digests=digests)

    def newest_step(self) -> int:
        """Returns the newest step that every rank has done, or -1."""
        newest = [max(losses, default=-1) for losses in self.losses.values()]
        return min(newest, default=-1)

    def median_step_s(self) -> float:
        """Returns the median step time of rank 0, from the end of one step to the end of the next."""
        ends = [each.ended for each in self.steps[0]]
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))

    def steps_done_again(self) -> int:
        """Returns how many steps were completed more than once, at the rank with the most of them."""
        return max(len(steps) - len({each.step for each in steps}) for steps in self.steps.values())


def differences(one: Results, other: Results) -> list[str]:
    """Returns the differences as text. The list is empty if all losses and final states are bit-identical."""
    found = [_compare("losses", rank, one.losses.get(rank), other.losses.get(rank)) for rank in _ranks(one, other)]
    found += [
        _compare("final state", rank, one.digests.get(rank), other.digests.get(rank)) for rank in _ranks(one, other)
    ]
    return [text for text in found if text is not None]


def _ranks(one: Results, other: Results) -> list[int]:
    return sorted(set(one.losses) | set(other.losses))


def _compare(what: str, rank: int, one: Any, other: Any) -> str | None:
    if one is None or other is None:
        return f"{what} of rank {rank}: missing"
    if isinstance(one, dict) and isinstance(other, dict):
        wrong = sorted(step for step in one.keys() | other.keys() if one.get(step) != other.get(step))
        return f"{what} of rank {rank} differ at steps {wrong}" if wrong else None
    return None if one == other else f"{what} of rank {rank} differs"


_POLL_S = 0.1  # shorter polling would take CPU time from the job
LIMIT_S = 300.0
"""A limit bounds only a run that fails: it is far longer than a slow and busy machine needs."""


@dataclass
class Trial:
    """One job. Its script gets `--out` and `script_arguments`; events and results are in `folder`."""

    config: JobConfig
    script_arguments: list[str]
    folder: Path
    script: Path
    deadline_s: float = 2 * LIMIT_S
    environment: dict[str, str] = field(default_factory=dict)
    fork_server: SharedForkServer | None = None
    job: LocalJob = field(init=False)

    def __post_init__(self) -> None:
        script = [str(self.script), "--out", str(self.out), *self.script_arguments]
        run_dir = RunDir.create(self.folder / "run")
        self.job = LocalJob(
            self.config, run_dir, script, quiet=True, environment=self.environment, fork_server=self.fork_server
        )

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def results(self) -> Results:
        return Results.read(self.out)

    def recoveries(self) -> list[Recovery]:
        return recoveries(self.events())

    def events(self) -> list[dict[str, Any]]:
        return read_events(self.job.run_dir.events)

    def run(self, during: Callable[[Trial], None] | None = None) -> Results:
        """Runs the job to its end; `during` acts on the running job. If the job fails, JobFailed contains the end of
        its console."""
        with running(self.job):
            if during is not None:
                during(self)
            code = self.job.wait(self.deadline_s)
        if code:
            raise JobFailed(f"the job ended with code {code}:\n{self._last_lines()}")
        self._require_no_false_alarm()
        return self.results()

    def _require_no_false_alarm(self) -> None:
        """The results of these scripts are compared bit for bit, so none of them may be called inexact."""
        for event in self.events():
            if event["what"] == "inexact_script":
                raise JobFailed(f"a script that is exact was called inexact: {event['found']}")

    def console(self) -> str:
        path = self.job.run_dir.path / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _last_lines(self) -> str:
        """Without the table of timeouts, which every coordinator and standby prints, perhaps last of all."""
        lines = [line for line in self.console().splitlines() if not line.startswith("[deadpool] timeout:")]
        return "\n".join(lines[-40:])

    # --- waiting, always bounded -------------------------------------------------------------------------------------

    def await_step(self, step: int, timeout_s: float = LIMIT_S) -> None:
        """Waits until every rank has completed `step`."""
        self.await_true(lambda: self.results().newest_step() >= step, f"step {step}", timeout_s)

    def await_event(self, what: str, count: int = 1, timeout_s: float = LIMIT_S) -> None:
        self.await_true(lambda: sum(e["what"] == what for e in self.events()) >= count, f"event {what}", timeout_s)

    def await_true(self, ready: Callable[[], bool], what: str, timeout_s: float = LIMIT_S) -> None:
        """If the job has ended, it is asked once more: what came right before the end has come."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.job.poll() is not None:
                if ready():
                    break
                raise JobFailed(f"the job ended while waiting for {what}:\n{self._last_lines()}")
            if time.monotonic() > deadline:
                raise JobFailed(f"{what} did not come within {timeout_s:g} s:\n{self._last_lines()}")
            time.sleep(_POLL_S)
