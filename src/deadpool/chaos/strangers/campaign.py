"""Many scripts, as many at a time as there are processors for them: what came of each, and what came of all."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.chaos.strangers.generate import Script, generate
from deadpool.chaos.strangers.protected import Ask
from deadpool.chaos.strangers.shared_processes import SharedProcesses
from deadpool.chaos.strangers.trial import ScriptResult, ScriptTrial

AT_ONCE = max(2, len(os.sched_getaffinity(0)) // 2)

Report = Callable[[ScriptResult], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """`keep`: the folders of good scripts too; those of others are kept in any case, below `folder`."""

    seed: int
    numbers: Sequence[int]
    folder: Path
    keep: bool
    deadline: float
    ask: Ask
    report: Report
    at_once: int = AT_ONCE

    def run(self) -> list[ScriptResult]:
        """A verdict for each script that was begun in time."""
        shared = SharedProcesses()
        try:
            with ThreadPoolExecutor(self.at_once) as workers:
                done = workers.map(lambda number: self._judge(generate(self.seed, number), shared), self.numbers)
                return [verdict for verdict in _collected(done, shared) if verdict is not None]
        finally:
            shared.close()

    def _judge(self, script: Script, shared: SharedProcesses) -> ScriptResult | None:
        if time.monotonic() > self.deadline or shared.stopping.is_set():
            return None
        folder = self.folder / script.title
        verdict = ScriptTrial(script, folder, shared, self.ask).judge()
        if shared.stopping.is_set():
            return None  # it was cut off: what came of it says nothing
        if verdict.is_good and not self.keep:
            shutil.rmtree(folder, ignore_errors=True)
        self.report(verdict)
        return verdict


def _collected(done: Iterable[ScriptResult | None], shared: SharedProcesses) -> list[ScriptResult | None]:
    """An interrupt, or an error of this command, ends what runs too: the workers are waited for."""
    try:
        return list(done)
    except BaseException:
        shared.stopping.set()
        raise


def summary(verdicts: Sequence[ScriptResult], *, seed: int, asked: int, left_behind: list[str]) -> dict[str, Any]:
    results = Counter(verdict.result for verdict in verdicts)
    return {
        "seed": seed,
        "asked": asked,
        "run": len(verdicts),
        "results": dict(sorted(results.items())),
        "faults": sum(verdict.hit for verdict in verdicts),
        "undisturbed": [v.script.number for v in verdicts if v.injections and not v.hit],
        "refused": dict(Counter(v.script.refused for v in verdicts if v.result == "refused")),
        "left_behind": left_behind,
        "scripts": [verdict.figures() for verdict in verdicts],
    }


def is_good(figures: dict[str, Any]) -> bool:
    """Also that faults came at all: scripts that were never hit prove nothing."""
    results = figures["results"]
    good = results.get("exact", 0) + results.get("refused", 0)
    is_hit = figures["faults"] > 0 or not results.get("exact", 0)
    return bool(good == figures["asked"] and is_hit and not figures["left_behind"])
