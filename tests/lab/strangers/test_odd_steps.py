"""Steps that are exact although their scripts do not do what most do. Each was silently wrong once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from waiting import LIMIT_S

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import JobFailed
from deadpool.events.event import read_events
from deadpool_lab.strangers.records import differences, read_ranks, recomputed_differently

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("odd_steps_script.py")
RANKS = 3


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, marks=pytest.mark.thorough) for case in ("zero_is_not_none", "many_parameters")),
        *("update_by_hand", "teacher_first", "thawed_and_frozen", "second_order"),
    ],
)
def test_odd_steps(case, tmp_path, shared):
    code = shared.references.run(
        SCRIPT, [case, "--out", str(tmp_path / "expected")], RANKS, tmp_path / "console.log", LIMIT_S
    )
    assert code == 0, (tmp_path / "console.log").read_text()
    _run_with_faults(case, tmp_path, shared)
    assert (tmp_path / "victim").exists()
    found = read_ranks(tmp_path / "found", RANKS)
    assert differences(read_ranks(tmp_path / "expected", RANKS), found) == []
    assert recomputed_differently(found) == []
    assert [
        event for event in read_events(tmp_path / "run" / "events.jsonl") if event["what"] == "inexact_script"
    ] == []


def _run_with_faults(case: str, folder: Path, shared) -> None:
    job = LocalJob(
        JobConfig(nodes=RANKS, overhead_budget=0.0, hang_timeout_s=LIMIT_S).checked(),
        RunDir.create(folder / "run"),
        [str(SCRIPT), case, "--out", str(folder / "found"), "--marker", str(folder / "victim")],
        quiet=True,
        fork_server=shared.fork_server,
    )
    with running(job):
        try:
            code = job.wait(2 * LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -1
    if code:
        raise JobFailed(f"the job ended with {code}:\n{(folder / 'run' / 'console.log').read_text()}")
