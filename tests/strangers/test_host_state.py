"""State beside parameters that is exact although only the script knows where it lies. Each was wrong once, most of them
silently (docs/exactness.md)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from host_state_script import KINDS, MOMENTS

from deadpool.chaos.strangers.records import differences, read_ranks, recomputed_differently
from deadpool.config import JobConfig
from deadpool.control.launcher import LocalJob, running
from deadpool.control.run_dir import RunDir
from deadpool.errors import JobFailed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("host_state_script.py")
RANKS = 3
_LIMIT_S = 300.0


@pytest.mark.parametrize("moment", MOMENTS)
def test_all_kinds_in_one_job(moment, tmp_path, shared):
    compare(list(KINDS), moment, tmp_path, shared)


@pytest.mark.thorough
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_its_own(kind, moment, tmp_path, shared):
    compare([kind], moment, tmp_path, shared)


def compare(kinds: list[str], moment: str, folder: Path, shared) -> None:
    code = shared.references.run(
        SCRIPT, [*kinds, "--out", str(folder / "expected")], RANKS, folder / "console.log", _LIMIT_S
    )
    assert code == 0, (folder / "console.log").read_text()
    _run_with_fault(kinds, moment, folder, shared)
    assert (folder / "victim").exists()
    found = read_ranks(folder / "found", RANKS)
    assert differences(read_ranks(folder / "expected", RANKS), found) == []
    assert recomputed_differently(found) == []


def _run_with_fault(kinds: list[str], moment: str, folder: Path, shared) -> None:
    job = LocalJob(
        JobConfig(nodes=RANKS, overhead_budget=0.0, hang_timeout_s=120.0).checked(),
        RunDir.create(folder / "run"),
        [
            *(str(SCRIPT), *kinds, "--moment", moment),
            *("--out", str(folder / "found"), "--marker", str(folder / "victim")),
        ],
        quiet=True,
        fork_server=shared.fork_server,
    )
    with running(job):
        try:
            code = job.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -1
    if code:
        raise JobFailed(f"the job ended with {code}:\n{(folder / 'run' / 'console.log').read_text()}")
