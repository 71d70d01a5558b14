"""A recovery that is played names each defect whose cure is switched off, and nothing where the cures are on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT_S

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.events.event import read_events
from deadpool.snapshot.state.cures import VARIABLE
from deadpool_lab.strangers.generate import generate

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SEED, LATER = 3, 6  # what scripts do later than in their first step, they have done by then
KINDS = {
    "D1": "flatgrad",
    "D2": "emaswap_copy",
    "D3": "numpywrite",
    "D4": "headreset",
    "D5": "dropoutp",
    "D6": "optattr",
    "D7": "prevcur",
    "D8": "expanded",
    "D9": "zip1",
}
INSIDE = ("D3", "D7")  # only a survivor that is cut off inside of a step shows them
NOT_EXACT = ("audit_differs", "audit_given_up", "failed")
EXACT = ("audit_passed", "audit_not_judged")


Verdicts = list[tuple[str, bool]]  # the name of the event, and whether ranks were cut off inside of a step


def audit(kind: str, folder: Path, shared, without: str = "") -> Verdicts:
    """The verdicts on a script of this kind that goes on for long, once it has done all that it does later; the last is
    the first one that is not good."""
    script = generate(SEED, 0, kind)
    folder.mkdir()
    path = folder / "script.py"
    path.write_text(script.text.replace(f"STEPS = {script.steps}\n", "STEPS = 100000\n"))
    for name, text in script.files.items():
        (folder / name).write_text(text)
    with _job(path, script, folder, shared, without) as job:
        _await(job, lambda: _watermark(job) >= LATER and _events(job, "rehearsed"), "a spare")
        ask(job.run_dir, "audit")
        _await(job, lambda: _events(job, *NOT_EXACT) or not _is_under_way(job), "a verdict")
        _await(job, lambda: _events(job, *NOT_EXACT) or _is_written(job), "its event")
        return [(event["what"], event.get("inside", False)) for event in _events(job, *EXACT, *NOT_EXACT)]


@contextmanager
def _job(path: Path, script, folder: Path, shared, without: str) -> Iterator[LocalJob]:
    shape = script.shape
    config = JobConfig(
        nodes=shape.nodes, nproc_per_node=shape.per_node, spares=1, overhead_budget=0.0, hang_timeout_s=LIMIT_S
    ).checked()
    environment = {**script.environment, VARIABLE: without}
    arguments = [str(path), "--out", str(folder / "out"), "--pace", "0.1"]
    run_dir = RunDir.create(folder / "run")
    job = LocalJob(config, run_dir, arguments, quiet=True, environment=environment, fork_server=shared.fork_server)
    with running(job):
        yield job


def _watermark(job: LocalJob) -> int:
    try:
        return int(ask(job.run_dir, "status")["watermark"] or 0)
    except Exception:  # it has not begun to listen yet
        return 0


def _audit_of(job: LocalJob) -> dict[str, Any]:
    """A job that has ended answers no more: its last event is awaited then."""
    try:
        return ask(job.run_dir, "status")["audit"]
    except ConfigError:
        return {"under_way": True, "verdicts": []}


def _is_under_way(job: LocalJob) -> bool:
    return bool(_audit_of(job)["under_way"])


def _is_written(job: LocalJob) -> bool:
    """A thread writes events, so the status may know of a verdict before the log has it."""
    return len(_events(job, *EXACT, "audit_differs")) >= len(_audit_of(job)["verdicts"])


def _events(job: LocalJob, *names: str) -> list[dict[str, object]]:
    path = job.run_dir.events
    return [event for event in (read_events(path) if path.exists() else []) if event["what"] in names]


def _await(job: LocalJob, ready, what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not come"
        assert job.poll() is None or _events(job, *NOT_EXACT), (job.run_dir.path / "console.log").read_text()
        time.sleep(0.05)


@pytest.mark.parametrize(
    "cure", [cure if cure == "D1" else pytest.param(cure, marks=pytest.mark.thorough) for cure in KINDS]
)
def test_defect_is_named_where_its_cure_is_off(cure, tmp_path, shared):
    found = audit(KINDS[cure], tmp_path / "without", shared, without=cure)
    name, inside = found[-1]
    assert name in ("audit_differs", "failed"), found
    assert inside == (cure in INSIDE), found


@pytest.mark.thorough
@pytest.mark.parametrize("cure", [cure for cure in KINDS if cure != "D9"])
def test_nothing_is_named_where_it_is_on(cure, tmp_path, shared):
    verdicts = audit(KINDS[cure], tmp_path / "with", shared)
    assert {name for name, _ in verdicts} == {"audit_passed"}
    assert [inside for _, inside in verdicts] == [False] * (len(verdicts) - 1) + [True]


def test_no_verdict_where_nothing_that_is_protected_changes(tmp_path, shared):
    """What steps train is in a dictionary. What ranks go back to inside of a step is compared all the same."""
    verdicts = audit("torchfunc", tmp_path / "dictionary", shared)
    assert verdicts == [("audit_not_judged", False)] * (len(verdicts) - 1) + [("audit_passed", True)]
    assert len(verdicts) > 1
