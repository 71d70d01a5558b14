"""One script, run three times: without DeadPool, with it, and with injected faults. All three runs have to agree."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool_lab.strangers.generate import Script
from deadpool_lab.strangers.protected import Ask, PlannedInjection, ProtectedRun, draw_injections
from deadpool_lab.strangers.records import (
    NO_AUDIT,
    AuditResult,
    RankRecord,
    Verdict,
    differences,
    final_twice,
    lost_files,
    read_ranks,
    recomputed_differently,
)
from deadpool_lab.strangers.references import SharedProcesses, run_torchrun

RUN_S = 60.0  # on a machine that is not busy
_MOST_PATIENCE = 3.0
_REAL_TORCHRUN_EVERY = 10
_TAIL_LINES = 25

GOOD = ("exact", "named first", "refused")


_OVER = ("invalid", "hung", "died", "refused")  # after which a run with faults would tell nothing


@dataclass(slots=True)
class ScriptResult:
    """`result` is exact, named first (not exact, but before the first fault DeadPool named the rule that a script of
    this kind breaks, or the audit found a difference), refused (as it had to be, or might be), differs, false alarm
    (exact, though the audit says that it is not), hung, died (without a fault), failed, accepted (though it had to be
    refused) or invalid: without DeadPool the script does not even run, or not twice alike."""

    script: Script
    result: str = "exact"
    problems: list[str] = field(default_factory=list)
    injections: list[PlannedInjection] = field(default_factory=list)
    hit: int = 0
    missed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)  # rules that DeadPool named before the first fault
    audit: AuditResult = NO_AUDIT  # of the recovery that was played in the undisturbed run

    @property
    def is_good(self) -> bool:
        return self.result in GOOD

    def blame(self, result: str, *problems: str) -> None:
        self.result = self.result if self.result not in GOOD else result
        self.problems += problems

    def excuse(self, result: str) -> None:
        """Notes a result that is not exact, and yet as it has to be."""
        self.result = result if self.is_good else self.result

    def figures(self) -> dict[str, Any]:
        return {
            "number": self.script.number,
            "kind": self.script.kind.name if self.script.kind else "",
            "command": self.script.command,
            "drawn": list(self.script.tags),
            "nodes": self.script.shape.nodes,
            "ranks_per_node": self.script.shape.per_node,
            "faults": [str(injection) for injection in self.injections],
            "hit": self.hit,
            "missed": self.missed,
            "result": self.result,
            "refused": self.script.refused,
            "named": self.named,
            "audit": str(self.audit),
            "problems": self.problems,
            "seconds": {name: round(took, 2) for name, took in self.seconds.items()},
        }


@dataclass(slots=True)
class ScriptTrial:
    script: Script
    folder: Path
    shared: SharedProcesses
    ask: Ask
    limit_s: float | None = None  # of each run; None: patience_s()
    timeouts: Mapping[str, float] = field(default_factory=dict)  # of its jobs, other than a run of trials's

    def run(self) -> ScriptResult:
        result = ScriptResult(self.script)
        path = self._write()
        if self.script.refused:
            self._check_refused(result, path)
            return result
        expected = self._unprotected(result, path)
        for run in (self._undisturbed, self._with_faults):
            if not self.shared.stopping.is_set() and result.result not in _OVER:
                run(result, path, expected)
        if result.audit.verdict is Verdict.DIFFERS and result.result == "exact":
            result.blame("false alarm", f"the audit {result.audit}, and all runs agree")
        return result

    def _write(self) -> Path:
        shutil.rmtree(self.folder, ignore_errors=True)  # of an earlier run
        self.folder.mkdir(parents=True)
        path = self.folder / f"stranger-{self.script.title}.py"
        path.write_text(self.script.text)
        for name, text in self.script.files.items():
            (self.folder / name).write_text(text)
        return path

    # --- without DeadPool --------------------------------------------------------------------------------------------

    def _unprotected(self, result: ScriptResult, path: Path) -> list[RankRecord]:
        """A kind is run twice: what is not the same by itself cannot be compared."""
        expected = self._launch(result, path, "torchrun")
        is_tenth = self.script.number % _REAL_TORCHRUN_EVERY == _REAL_TORCHRUN_EVERY - 1
        others = [("torchrun again", False)] * (self.script.kind is not None) + [("real torchrun", True)] * is_tenth
        for name, real in others:
            problems = differences(expected, self._launch(result, path, name, real=real)) if result.is_good else []
            if problems:
                result.blame("invalid", f"torchrun and {name} differ", *problems)
        return expected

    def _launch(self, result: ScriptResult, path: Path, name: str, *, real: bool = False) -> list[RankRecord]:
        world_size = self.script.shape.world_size
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir()
        is_real = real or (self.script.kind is not None and self.script.kind.real_torchrun)
        launch = run_torchrun if is_real else self.shared.references.run
        began, console = time.monotonic(), folder / "console.log"
        code = launch(path, ["--out", str(folder)], world_size, console, limit_s := self._limit_s)
        result.seconds[name] = time.monotonic() - began
        if code is None:
            result.blame("invalid", f"{name}: not over after {limit_s:g} s", _tail(console.read_text(errors="replace")))
        elif code:
            result.blame("invalid", f"{name}: ended with code {code}", _tail(console.read_text(errors="replace")))
        return read_ranks(folder, world_size)

    # --- with DeadPool -----------------------------------------------------------------------------------------------

    def _undisturbed(self, result: ScriptResult, path: Path, expected: list[RankRecord]) -> None:
        """Nothing is injected, but a recovery is played."""
        run = self._run(result, path, "undisturbed", [], audited=True)
        result.audit = run.audit_result()
        self.judge(result, run, "undisturbed", expected)

    def _with_faults(self, result: ScriptResult, path: Path, expected: list[RankRecord]) -> None:
        result.injections = draw_injections(self.script)
        run = self._run(result, path, "hit", result.injections)
        if run.code and run.was_hit_after_the_end():
            late = result.injections.pop() if len(result.injections) > 1 else None
            run = self._run(result, path, "hit again", result.injections)
            run.missed.append(f"{late or result.injections[0]}: came after the end of the loop, so it was run again")
        result.hit, result.missed = run.hit, run.missed
        self.judge(result, run, "hit", expected)

    def _run(
        self,
        result: ScriptResult,
        path: Path,
        name: str,
        injections: list[PlannedInjection],
        *,
        audited: bool = False,
    ) -> ProtectedRun:
        run = ProtectedRun(
            script=self.script,
            path=path,
            folder=self.folder / name.replace(" ", "-"),
            shared=self.shared,
            ask=self.ask,
            timeout_s=self._limit_s,
            injections=injections,
            audited=audited,
            timeouts=self.timeouts,
        )
        began = time.monotonic()
        run.run()
        result.seconds[name] = time.monotonic() - began
        return run

    @property
    def _limit_s(self) -> float:
        return patience_s() if self.limit_s is None else self.limit_s

    def judge(self, result: ScriptResult, run: ProtectedRun, name: str, expected: list[RankRecord]) -> None:
        result.named = list(dict.fromkeys(result.named + run.named()))
        if run.code is None:
            result.blame("hung", f"{name}: not over after {run.timeout_s:g} s; stacks are in {run.folder}/diagnosis")
        elif run.code:
            self._judge_end(result, run, name)
        else:
            self._judge_records(result, run, name, expected)
        if hangs := run.hangs():
            result.blame("hung", *(f"{name}: {hang}" for hang in hangs))
        if self.script.kind and result.is_good and result.result != "refused" and (failures := run.own_failures()):
            result.blame("died", *(f"{name}: {failure}" for failure in failures))

    def _judge_end(self, result: ScriptResult, run: ProtectedRun, name: str) -> None:
        """A job that has ended with an error."""
        words = (f"{name}: the job ended with code {run.code}", _tail(run.output()))
        if run.was_hit():
            if self._is_excused(result, run):
                result.excuse("named first")
            else:
                result.blame("failed", *words)
        elif self._may_be_named() and run.was_refused():
            result.excuse("refused")
        else:
            result.blame("died", *words)

    def _judge_records(self, result: ScriptResult, run: ProtectedRun, name: str, expected: list[RankRecord]) -> None:
        found = read_ranks(run.out, self.script.shape.world_size)
        problems = differences(expected, found) + final_twice(found)
        problems += [] if self.script.skips_errors else recomputed_differently(found)
        lost = lost_files(self.folder / "torchrun", run.out, self.script.kind.keeps if self.script.kind else ())
        if problems and not self._is_excused(result, run):
            result.blame("differs", *(f"{name}: {problem}" for problem in problems))
        elif lost and not self._was_foretold(run):
            result.blame("differs", *(f"{name}: {problem}" for problem in lost))
        elif problems or lost:
            result.excuse("named first")

    def _is_excused(self, result: ScriptResult, run: ProtectedRun) -> bool:
        """Tells whether a difference is excused. Only a fault excuses one, and only if it was foretold. What has to be
        exact is excused by nothing: else a false alarm of the audit would hide a difference that it did not find."""
        foretold = self._was_foretold(run) or result.audit.verdict is Verdict.DIFFERS
        return self._may_be_named() and run.was_hit() and foretold

    def _was_foretold(self, run: ProtectedRun) -> bool:
        """Tells whether a rule that this kind breaks foretold the difference: any other one says nothing of what went
        wrong.
        """
        return self.script.kind is not None and not set(self.script.kind.rules).isdisjoint(run.named())

    def _may_be_named(self) -> bool:
        return self.script.kind is not None and self.script.kind.expected == "named"

    def _check_refused(self, result: ScriptResult, path: Path) -> None:
        run = self._run(result, path, "undisturbed", [])
        result.result = "refused"
        if run.code is None:
            result.blame("hung", f"not over after {run.timeout_s:g} s; stacks are in {run.folder}/diagnosis")
        elif not run.code:
            result.blame("accepted", f"it was to be refused: {self.script.refused}")
        elif self.script.refused not in run.output():
            result.blame("failed", f"it was to be refused with {self.script.refused!r}", _tail(run.output()))


def patience_s() -> float:
    """Time limit of one run. On a busy machine it grows with the load."""
    crowd = os.getloadavg()[0] / (os.cpu_count() or 1)
    return RUN_S * min(max(1.0, crowd), _MOST_PATIENCE)


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
