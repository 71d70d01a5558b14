"""Two runs of the same training, one undisturbed, one with a node killed in mid-step, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.config import JobConfig
from deadpool.story import Recovery
from deadpool.workload.harness import Trial
from deadpool.workload.results import Results, differences

Progress = Callable[[str, int], None]  # what is going on, steps done


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One kill and what it cost. Times count from the kill itself, as seen by whoever killed."""

    victim: str
    killed_at: float
    recovery: Recovery

    def first_step_s(self) -> float:
        """Until every rank has done a step begun after the kill."""
        return max(r["t"] for r in self.recovery.records if r["what"] == "resumed") - self.killed_at

    def phases_s(self) -> dict[str, float]:
        return {**self.recovery.phases_s, "detect": self.recovery.fault["t"] - self.killed_at}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    undisturbed: Results
    disturbed: Results
    injection: Injection

    def differences(self) -> list[str]:
        return differences(self.undisturbed, self.disturbed)

    def summary(self) -> dict[str, Any]:
        median_step_s = self.undisturbed.median_step_s()
        return {
            "bit_identical": not self.differences(),
            "steps": len(self.undisturbed.losses[0]),
            "steps_redone": self.injection.recovery.lost_steps,
            "median_step_s": median_step_s,
            "first_step_s": self.injection.first_step_s(),
            "net_recovery_s": self.injection.first_step_s() - median_step_s,
            "phases_s": self.injection.phases_s(),
        }


def compare(*, layout: str, steps: int, victim: str, folder: Path, progress: Progress) -> Comparison:
    """4 nodes of one trainer; in the second run also a spare node, which has rehearsed all four ranks.

    The kill comes half-way, in the middle of a step.
    """
    arguments = ["--layout", layout, "--steps", str(steps)]
    undisturbed = Trial(JobConfig(nodes=4, overhead_budget=0.0), arguments, folder / "undisturbed").run(
        lambda trial: watch(trial, steps - 1, progress, "training undisturbed")
    )
    trial = Trial(JobConfig(nodes=4, spares=1, rehearsals=4, overhead_budget=0.0), arguments, folder / "disturbed")
    killed_at: list[float] = []

    def disturb(trial: Trial) -> None:
        watch(trial, steps // 2 - 1, progress, "training again, with a spare")
        killed_at.append(kill_in_mid_step(trial, victim, undisturbed.median_step_s()))
        watch(trial, steps - 1, progress, f"node {victim} was killed, going on")

    disturbed = trial.run(disturb)
    injection = Injection(victim=victim, killed_at=killed_at[0], recovery=trial.recoveries()[0])
    return Comparison(undisturbed=undisturbed, disturbed=disturbed, injection=injection)


def kill_in_mid_step(trial: Trial, victim: str, step_s: float, rehearsals: int = 4) -> float:
    """Once so many rehearsals are done: SIGKILL to the node, some time into its next step."""
    trial.await_event("rehearsed", rehearsals)
    trial.await_step(trial.results().newest_step() + 1)
    time.sleep(0.4 * step_s)
    return trial.job.kill_node(victim)


def watch(trial: Trial, step: int, progress: Progress, what: str) -> None:
    """Shows progress until every rank has completed `step`."""

    def reached() -> bool:
        newest = trial.results().newest_step()
        progress(what, newest + 1)
        return newest >= step

    trial.await_true(reached, f"step {step}", 180.0)
