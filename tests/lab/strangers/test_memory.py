"""What a script has at a boundary it has again after a fault: the same tensors, in the same memory. Each was wrong."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT_S, wait_until

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool_lab.strangers.records import differences, read_ranks, recomputed_differently

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("memory_script.py")
RANKS = 3
CHANGED = 4  # the first version behind the step in which scripts exchange something (memory_script.py)
_QUICK = {("emaswap", "post"), ("numpywrite", "mid"), ("headreset", "mid")}
_EXACT = (
    *("flatgrad", "held", "graphlike", "flatopt", "emaswap", "moco", "v2p", "dataassign", "datasub", "numpywrite"),
    *("flatparam", "vqema", "headreset"),
)


def _cells() -> list[object]:
    cells = [(case, moment) for case in _EXACT for moment in ("mid", "post")]
    return [
        pytest.param(*cell, marks=() if cell in _QUICK else pytest.mark.thorough, id="-".join(cell)) for cell in cells
    ]


@pytest.mark.parametrize(("case", "moment"), _cells())
def test_the_boundary_comes_back(case, moment, tmp_path, shared):
    arguments = [case, "--out", str(tmp_path / "expected")]
    code = shared.references.run(SCRIPT, arguments, RANKS, tmp_path / "console.log", LIMIT_S)
    assert code == 0, (tmp_path / "console.log").read_text()
    code, console, events = _run_with_a_fault(case, moment, tmp_path, shared)
    assert code == 0, console
    assert (tmp_path / "victim").exists() and [each["what"] for each in events].count("fault") == 1, events
    found = read_ranks(tmp_path / "found", RANKS)
    assert differences(read_ranks(tmp_path / "expected", RANKS), found) == []
    assert recomputed_differently(found) == []


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("prunelater", "model.2.weight_orig"),
        pytest.param("grow", "model.3.weight", marks=pytest.mark.thorough),
    ],
)
def test_parameters_that_a_newcomer_cannot_have_are_named(case, named, tmp_path, shared):
    """Before the fault by an event, and at the fault by the error; no survivor is hurt."""
    code, console, events = _run_with_a_fault(case, "mid", tmp_path, shared, committed=CHANGED)
    assert code != 0 and (tmp_path / "victim").exists()
    assert named in str(_before_the_fault("inexact_script", events)), events
    assert named in console and "SIGABRT" not in console + str(events), console


@pytest.mark.thorough
def test_an_optimizer_that_was_not_protected_is_named(tmp_path, shared):
    _, _, events = _run_with_a_fault("newopt", "mid", tmp_path, shared)
    assert "SGD over 4 parameters" in str(_before_the_fault("inexact_script", events)), events


def _before_the_fault(what: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    fault = next(index for index, each in enumerate(events) if each["what"] == "fault")
    return [each for each in events[:fault] if each["what"] == what]


def _watermark(job: LocalJob) -> int:
    try:
        return int(ask(job.run_dir, "status")["watermark"] or 0)
    except Exception:  # it has not begun to listen yet
        return 0


def _run_with_a_fault(
    case: str, moment: str, folder: Path, shared, committed: int | None = None
) -> tuple[int, str, list[dict[str, Any]]]:
    """Returns the exit code, the console and the events. The fault waits until the version is committed, if one is
    given: else a recovery may go back further."""
    arguments = [case, "--moment", moment, "--out", str(folder / "found"), "--marker", str(folder / "victim")]
    job = LocalJob(
        JobConfig(nodes=RANKS, overhead_budget=0.0, hang_timeout_s=LIMIT_S).checked(),
        RunDir.create(folder / "run"),
        [str(SCRIPT), *arguments],
        quiet=True,
        fork_server=shared.fork_server,
    )
    with running(job):
        if committed is not None:
            wait_until(lambda: _watermark(job) >= committed, f"version {committed}")
        (folder / "gate").touch()
        try:
            code = job.wait(2 * LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -1
    run = folder / "run"
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return code, (run / "console.log").read_text(), events
