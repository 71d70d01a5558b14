"""Runs the same training twice, once undisturbed and once with a node killed in mid-step, and compares the results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import Results, Trial, differences
from deadpool.events.story import Recovery

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
    """Waits for that many rehearsals, then sends SIGKILL to the node in the middle of its next step. Returns when.

    Under a torch that lacks what a rehearsal needs, there is none to wait for.
    """

    def is_ready() -> bool:
        events = trial.events()
        done = sum(event["what"] == "rehearsed" for event in events) >= rehearsals
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
