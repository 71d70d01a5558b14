"""What a run's records, files and events make of a kind: exact, named first, refused, or a defect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deadpool_lab.strangers.generate import generate
from deadpool_lab.strangers.protected import ProtectedRun, draw_injections
from deadpool_lab.strangers.records import (
    NO_AUDIT,
    AuditResult,
    RankRecord,
    Verdict,
    audit_result,
    named_rules,
    read_ranks,
)
from deadpool_lab.strangers.trial import ScriptResult, ScriptTrial

FAULT = {"what": "fault", "ranks": [1], "kind": "trainer", "reason": "killed by SIGKILL"}
FAILED = {"what": "fault", "kind": "script"}
NAMED = {"what": "inexact_script", "rule": "batch_before_step"}
REPLACED = {"what": "inexact_script", "rule": "replaced_objects"}
REMOVED = {"what": "inexact_script", "rule": "files_before_loop"}
STEP = {"step": 0, "draws": [], "batch": ""}


class Bench:
    """A script whose runs are over: what they left is written here."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.script = folder, generate(1, 0, kind)
        self.reference = folder / "torchrun"
        self._write(self.reference, "0x1p+0")

    def _write(self, out: Path, loss: str) -> None:
        out.mkdir(parents=True, exist_ok=True)
        for rank in range(self.script.shape.world_size):
            lines = [{**STEP, "loss": loss}, {"digest": loss}] if loss else []
            (out / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def judged(
        self,
        *events: dict[str, Any],
        loss: str = "0x1p+0",
        code: int = 0,
        said: str = "",
        audit: AuditResult = NO_AUDIT,
    ) -> ScriptResult:
        unused: Any = None
        injections = draw_injections(self.script) if FAULT in events else []
        run = ProtectedRun(
            self.script, self.folder / "s.py", self.folder / "hit", unused, unused, 60.0, injections, code=code
        )
        self._write(run.out, loss)
        (run.folder / "run").mkdir()
        (run.folder / "run" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (run.folder / "run" / "console.log").write_text(said)
        trial, result = ScriptTrial(self.script, self.folder, unused, unused), ScriptResult(self.script)
        result.audit = audit
        trial.judge(result, run, "hit", self.expected())
        return result

    def expected(self) -> list[RankRecord]:
        return read_ranks(self.reference, self.script.shape.world_size)


def test_identical(tmp_path):
    assert Bench(tmp_path, "zip1").judged(FAULT).result == "exact"


def test_silently_different(tmp_path):
    assert Bench(tmp_path, "zip1").judged(FAULT, loss="0x2p+0").result == "differs"


def test_different_and_named_before_the_fault(tmp_path):
    result = Bench(tmp_path, "zip1").judged(NAMED, FAULT, loss="0x2p+0")
    assert (result.result, result.named, result.is_good) == ("named first", ["batch_before_step"], True)


def test_another_rule_excuses_nothing(tmp_path):
    assert Bench(tmp_path, "zip1").judged(REPLACED, FAULT, loss="0x2p+0").result == "differs"


def test_the_audit_has_named_it(tmp_path):
    passed, differs = AuditResult(Verdict.PASSED), AuditResult(Verdict.DIFFERS, "object data (state_in_variables)")
    assert Bench(tmp_path, "accum3").judged(FAULT, loss="0x2p+0", audit=differs).result == "named first"
    assert Bench(tmp_path / "passed", "accum3").judged(FAULT, loss="0x2p+0", audit=passed).result == "differs"
    assert Bench(tmp_path / "exact", "flatgrad").judged(FAULT, loss="0x2p+0", audit=differs).result == "differs"


def test_verdicts_of_an_audit():
    ends, differs = {"what": "audit_ends_rank"}, {"what": "audit_differs", "part": "object data", "rule": "unexplained"}
    assert str(audit_result([ends, FAULT, {"what": "audit_passed"}])) == "passed"
    assert str(audit_result([ends, FAULT, differs])) == "differs: object data (unexplained)"
    assert str(audit_result([ends, FAULT])) == "no verdict"
    assert str(audit_result([])) == ""


def test_named_too_late(tmp_path):
    assert Bench(tmp_path, "zip1").judged(FAULT, NAMED, loss="0x2p+0").result == "differs"


def test_different_without_a_fault(tmp_path):
    assert Bench(tmp_path, "zip1").judged(NAMED, loss="0x2p+0").result == "differs"


def test_what_is_to_be_exact_is_not_excused(tmp_path):
    assert Bench(tmp_path, "flatgrad").judged(NAMED, FAULT, loss="0x2p+0").result == "differs"


def test_ended_after_a_fault_that_was_foretold(tmp_path):
    assert Bench(tmp_path, "grow").judged(REPLACED, FAULT, code=1).result == "named first"


def test_ended_after_a_fault(tmp_path):
    assert Bench(tmp_path, "grow").judged(FAULT, code=1).result == "failed"


def test_died_without_a_fault(tmp_path):
    said = "RuntimeError: Trying to resize storage that is not resizable"
    assert Bench(tmp_path, "resizebuf").judged(code=1, said=said).result == "died"


def test_died_of_itself_with_a_fault_that_nobody_injected(tmp_path):
    fault = {"what": "fault", "ranks": [0], "kind": "trainer", "reason": "it ended with code 1"}
    assert Bench(tmp_path, "resizebuf").judged(fault, code=1).result == "died"


def test_a_rank_that_failed_by_itself_and_was_replaced(tmp_path):
    fault = {**FAILED, "ranks": [0], "reason": "script: RuntimeError: storage that is not resizable"}
    result = Bench(tmp_path, "qat").judged(fault, {"what": "injected"}, FAULT)
    assert (result.result, len(result.problems)) == ("died", 1)


def test_a_newcomer_that_failed_after_the_fault_was_foretold(tmp_path):
    failed = {**FAILED, "ranks": [1], "reason": "script: StateError: its parameter is not here"}
    result = Bench(tmp_path, "grow").judged(REPLACED, {"what": "injected"}, FAULT, failed, code=1)
    assert result.result == "named first"


def test_a_rank_that_failed_by_the_end_of_the_one_that_was_audited(tmp_path):
    failed = {**FAILED, "ranks": [0], "reason": "script: RuntimeError: Connection reset by peer"}
    assert Bench(tmp_path, "asynchandle").judged({"what": "audit_ends_rank"}, FAULT, failed).result == "exact"


def test_refused_before_the_first_step(tmp_path):
    said = "deadpool.errors.ConfigError: its position cannot be saved or restored"
    assert Bench(tmp_path, "plainloader").judged(code=1, said=said, loss="").result == "refused"


def test_refused_without_need(tmp_path):
    said = "deadpool.errors.StateError: layout torch.sparse_coo cannot be stored"
    assert Bench(tmp_path, "sparsebuf").judged(code=1, said=said, loss="").result == "died"


def test_refused_after_a_step_is_no_refusal(tmp_path):
    said = "deadpool.errors.ConfigError: its position cannot be saved or restored"
    assert Bench(tmp_path, "plainloader").judged(code=1, said=said).result == "died"


# --- hangs ------------------------------------------------------------------------------------------------------------


def test_a_hang_that_was_found_is_a_defect_unless_it_was_foretold(tmp_path):
    found = {"what": "fault", "ranks": [], "reason": "no step for 15 s"}
    hit, loses = {"what": "injected"}, {"what": "inexact_script", "rule": "batch_before_step"}
    assert Bench(tmp_path / "silent", "nextsteps").judged(hit, FAULT, found).result == "hung"
    assert Bench(tmp_path / "before", "nextsteps").judged(loses, found, hit, FAULT).result == "hung"
    assert Bench(tmp_path / "other", "nextsteps").judged(REPLACED, hit, FAULT, found).result == "hung"
    assert Bench(tmp_path / "after", "nextsteps").judged(loses, hit, FAULT, found).result == "exact"


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_gone(tmp_path):
    bench = Bench(tmp_path, "cleandir")
    (bench.reference / "checkpoints").mkdir()
    (bench.reference / "checkpoints" / "step-2.pt").touch()
    result = bench.judged(FAULT)
    assert (result.result, result.problems) == ("differs", ["hit: the file checkpoints/step-2.pt is gone"])


def test_a_checkpoint_is_gone_and_that_was_foretold(tmp_path):
    bench = Bench(tmp_path, "cleandir")
    (bench.reference / "checkpoints").mkdir()
    (bench.reference / "checkpoints" / "step-2.pt").touch()
    assert bench.judged(REMOVED, FAULT).result == "named first"


def test_a_checkpoint_is_gone_and_something_else_was_foretold(tmp_path):
    bench = Bench(tmp_path, "cleandir")
    (bench.reference / "checkpoints").mkdir()
    (bench.reference / "checkpoints" / "step-2.pt").touch()
    assert bench.judged(NAMED, FAULT).result == "differs"


def test_lines_of_a_log_are_lost(tmp_path):
    bench = Bench(tmp_path, "openw")
    (bench.reference / "log-0.txt").write_text("step 0\nstep 1\n")
    assert _with_log(bench, "step 1\nstep 1\n").problems == ["hit: the file log-0.txt has lost 1 lines, first: step 0"]


def test_lines_of_a_log_that_come_twice(tmp_path):
    bench = Bench(tmp_path, "openw")
    (bench.reference / "log-0.txt").write_text("step 0\nstep 1\n")
    assert _with_log(bench, "step 0\nstep 0\nstep 1\n").result == "exact"


def _with_log(bench: Bench, lines: str) -> ScriptResult:
    out = bench.folder / "hit" / "out"
    out.mkdir(parents=True, exist_ok=True)
    (out / "log-0.txt").write_text(lines)
    return bench.judged(FAULT)


def test_a_rule_is_named_once():
    assert named_rules([NAMED, {"what": "go"}, NAMED, {"what": "audit_differs"}, FAULT, NAMED]) == [
        "batch_before_step",
        "audit_differs",
    ]
