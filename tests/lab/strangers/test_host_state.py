"""State beside parameters that is exact although only the script knows where it lies. Each was wrong once, most of them
silently (docs/exactness.md)."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest
from host_state_script import KINDS, MOMENTS
from waiting import LIMIT_S

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import JobFailed
from deadpool_lab.strangers.records import differences, read_ranks, recomputed_differently

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("host_state_script.py")
RANKS = 3


@pytest.fixture(scope="module")
def expected(tmp_path_factory, shared):
    """The records of runs without DeadPool, each made once."""

    @cache
    def run(kinds: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("expected")
        arguments = [*kinds, "--out", str(folder)]
        code = shared.references.run(SCRIPT, arguments, RANKS, folder / "console.log", LIMIT_S)
        assert code == 0, (folder / "console.log").read_text()
        return folder

    return run


@pytest.mark.parametrize("moment", MOMENTS)
def test_all_kinds_in_one_job(moment, tmp_path, shared, expected):
    _require_exact(list(KINDS), moment, tmp_path, shared.fork_server, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_its_own(kind, moment, tmp_path, shared, expected):
    _require_exact([kind], moment, tmp_path, shared.fork_server, expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cure", "kind"),
    [
        *(("D5", "dropoutp"), ("D5", "bnmomentum"), ("D5", "counter"), ("D6", "modstate"), ("D6", "optattr")),
        *(("D7", "prevcur"), ("D7", "databuffer"), ("D8", "expanded")),
    ],
)
def test_without_its_cure_it_differs_or_the_job_ends(cure, kind, tmp_path, expected, monkeypatch):
    monkeypatch.setenv("DEADPOOL_TEST_WITHOUT_CURE", cure)
    with pytest.raises((AssertionError, JobFailed)) as caught:
        _require_exact([kind], "mid", tmp_path, None, expected)
    assert "differs" in str(caught.value) or "more than one element" in str(caught.value)


def _require_exact(kinds: list[str], moment: str, folder: Path, fork_server, expected) -> None:
    _run_with_fault(kinds, moment, folder, fork_server)
    assert (folder / "victim").exists()
    found = read_ranks(folder / "found", RANKS)
    assert differences(read_ranks(expected(tuple(kinds)), RANKS), found) == []
    assert recomputed_differently(found) == []


def _run_with_fault(kinds: list[str], moment: str, folder: Path, fork_server) -> None:
    job = LocalJob(
        JobConfig(nodes=RANKS, overhead_budget=0.0, hang_timeout_s=LIMIT_S).checked(),
        RunDir.create(folder / "run"),
        [
            *(str(SCRIPT), *kinds, "--moment", moment),
            *("--out", str(folder / "found"), "--marker", str(folder / "victim")),
        ],
        quiet=True,
        fork_server=fork_server,
    )
    with running(job):
        try:
            code = job.wait(2 * LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -1
    if code:
        raise JobFailed(f"the job ended with {code}:\n{(folder / 'run' / 'console.log').read_text()}")
