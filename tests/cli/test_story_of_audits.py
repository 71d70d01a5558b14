"""What `deadpool show story` says of audits of steps and of silent errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deadpool.cli.main import app

RUNNER = CliRunner()


def audit(number: int, *more: dict[str, Any]) -> list[dict[str, Any]]:
    """One with its recovery, in which nothing was lost."""
    cause = f"fault-{number}"
    milestones = [{"what": "fault", "kind": "audit", "reason": "audit", "ranks": []}, {"what": "fenced"}]
    milestones += [{"what": "planned", "step": 7, "lost_steps": 1}, {"what": "prepared"}, {"what": "go"}]
    ordered = {"what": "step_audit_ordered", "step": 10 * number, "cause": "start"}
    later = [{"cause": cause, "step": 10 * number, **each} for each in more]
    return [ordered, *({"cause": cause, **each} for each in milestones), *later]


PASSED = {"what": "step_audit_passed", "ranks": 2, "computed": 2}
DIFFERS = {"what": "step_audit_differs", "ranks": [1], "nodes": ["n1"], "stage": "after", "part": "parameter 3.weight"}
FOUND = {"what": "corruption_found", "node": "n1", "ranks": [1], "errors": 2, "reason": "it says something else"}
RECORDS = [
    *audit(1, PASSED),
    *audit(2, PASSED),
    *audit(3, DIFFERS, {**PASSED, "computed": 3}, FOUND),
    *audit(4, PASSED),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "job.json").write_text("{}")
    lines = [json.dumps({"t": 1000.0 + t, **each}) for t, each in enumerate(RECORDS)]
    (tmp_path / "events.jsonl").write_text("".join(line + "\n" for line in lines))
    return tmp_path


def story(*words: object) -> str:
    done = RUNNER.invoke(app, ["show", "story", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def test_each_error_and_the_newest_audit_are_told(run):
    lines = story(run).splitlines()
    (erred,) = [line for line in lines if line.startswith("Audit of step 30")]
    assert "rank 1 on n1 differed first" in erred and "Node n1 has erred, its error number 2" in erred
    assert [line[:16] for line in lines if "and alike" in line] == ["Audit of step 40"]
    assert "2 audits before have found all ranks alike." in lines


def test_audit_of_one_recovery(run):
    told = story(run, "--cause", "fault-1")
    assert "Audit of step 10" in told and "Audit of step 40" not in told and "audits before" not in told
    (recovery,) = json.loads(story(run, "--cause", "fault-3", "--json"))
    (found,) = recovery["silent_errors"]
    assert (found["verdict"], found["stage"], found["named"]) == ("named", "after", [{"node": "n1", "ranks": [1]}])
