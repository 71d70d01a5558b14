"""Runs many generated scripts, as many at a time as there are processors, and sums up their results."""

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

from deadpool_lab.strangers.generate import Script, generate
from deadpool_lab.strangers.protected import Ask
from deadpool_lab.strangers.references import SharedProcesses
from deadpool_lab.strangers.trial import GOOD, ScriptResult, ScriptTrial

AT_ONCE = max(2, len(os.sched_getaffinity(0)) // 2)

Report = Callable[[ScriptResult], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTrials:
    """Tries many scripts. If `keep` is set the folders of good scripts are kept too; those of other scripts are kept in
    any case, in `folder`."""

    seed: int
    numbers: Sequence[int]
    folder: Path
    keep: bool
    deadline: float
    ask: Ask
    report: Report
    kind: str = ""  # only scripts of this kind; "all": the kinds in turn
    at_once: int = AT_ONCE

    def run(self) -> list[ScriptResult]:
        """Returns a result for each script that was begun in time."""
        shared = SharedProcesses()
        try:
            with ThreadPoolExecutor(self.at_once) as workers:
                done = workers.map(self._run_number, self.numbers, [shared] * len(self.numbers))
                return [result for result in _collected(done, shared) if result is not None]
        finally:
            shared.close()

    def _run_number(self, number: int, shared: SharedProcesses) -> ScriptResult | None:
        return self._run_script(generate(self.seed, number, self.kind), shared)

    def _run_script(self, script: Script, shared: SharedProcesses) -> ScriptResult | None:
        if time.monotonic() > self.deadline or shared.stopping.is_set():
            return None
        folder = self.folder / script.title
        result = ScriptTrial(script, folder, shared, self.ask).run()
        if shared.stopping.is_set():
            return None  # it was interrupted, so its result says nothing
        if result.is_good and not self.keep:
            shutil.rmtree(folder, ignore_errors=True)
        self.report(result)
        return result


def _collected(done: Iterable[ScriptResult | None], shared: SharedProcesses) -> list[ScriptResult | None]:
    """An interrupt, or an error of this command, also ends the scripts that run: the workers are waited for."""
    try:
        return list(done)
    except BaseException:
        shared.stopping.set()
        raise


def summary(results: Sequence[ScriptResult], *, seed: int, asked: int, left_behind: list[str]) -> dict[str, Any]:
    counts = Counter(result.result for result in results)
    return {
        "seed": seed,
        "asked": asked,
        "run": len(results),
        "results": dict(sorted(counts.items())),
        "faults": sum(result.hit for result in results),
        "audits": dict(Counter(result.audit.verdict.value for result in results)),
        "undisturbed": [v.script.number for v in results if v.injections and not v.hit],
        "kinds": _by_kind(results),
        "refused": dict(Counter(_refusal(v.script) for v in results if v.result == "refused")),
        "left_behind": left_behind,
        "scripts": [result.figures() for result in results],
    }


def _refusal(script: Script) -> str:
    return f"a script of the kind {script.kind.name}" if script.kind else script.refused


def _by_kind(results: Sequence[ScriptResult]) -> dict[str, dict[str, int]]:
    """How often each kind had which result."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        if result.script.kind is not None:
            counts.setdefault(result.script.kind.name, Counter())[result.result] += 1
    return {name: dict(sorted(of_kind.items())) for name, of_kind in sorted(counts.items())}


def is_good(figures: dict[str, Any]) -> bool:
    """Faults have to have been injected at all: scripts that were never hit prove nothing."""
    results = figures["results"]
    good = sum(results.get(name, 0) for name in GOOD)
    is_hit = figures["faults"] > 0 or not results.get("exact", 0)
    return bool(good == figures["asked"] and is_hit and not figures["left_behind"])
