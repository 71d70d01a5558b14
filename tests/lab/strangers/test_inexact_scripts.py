"""What no recovery can make good is named before the first fault; what only looks like it is not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT_S, wait_until

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool.events.event import read_events

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).with_name("inexact_script.py")
_thorough = pytest.mark.thorough


Events = list[dict[str, Any]]


def run(
    kind: str, folder: Path, shared: Any, *more: str, gate: Callable[[Events], bool] | None = None, **settings: Any
) -> tuple[int, Events]:
    """The exit code of the job, and its events. Where there is a gate, ranks wait in step 3 until it is open."""
    (folder / "out").mkdir(exist_ok=True)
    gated = [] if gate is None else ["--gate", str(folder / "gate")]
    job = LocalJob(
        JobConfig(**{"nodes": 2, "hang_timeout_s": LIMIT_S, **settings}).checked(),
        RunDir.create(folder / "run"),
        [str(SCRIPT), kind, "--out", str(folder / "out"), *gated, *more],
        quiet=True,
        fork_server=shared.fork_server,
    )
    with running(job):
        if gate is not None:
            wait_until(lambda: gate(_events(folder)), "what opens the gate")
            (folder / "gate").touch()
        try:
            code = job.wait(2 * LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -1
    return code, _events(folder)


def _events(folder: Path) -> Events:
    path = folder / "run" / "events.jsonl"
    return read_events(path) if path.exists() else []


def findings(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["what"] == "inexact_script"]


@pytest.mark.parametrize(
    ("kind", "rule", "by"),
    [
        pytest.param("zip1", "batch_before_step", 1, marks=_thorough),
        pytest.param("nextsteps", "batch_before_step", 1, marks=_thorough),
        pytest.param("accum3", "kept_gradients", 2, marks=_thorough),
        pytest.param("plainloader", "unprotected_loader", 1, marks=_thorough),
        pytest.param("asynchandle", "pending_handles", 1, marks=_thorough),
    ],
)
def test_what_is_not_exact_is_named_once_by_each_rank_in_the_first_steps(kind, rule, by, tmp_path, shared):
    code, events = run(kind, tmp_path, shared)
    assert code == 0
    found = findings(events)
    assert [
        (event["rule"], event["rank"], event["step"]) for event in sorted(found, key=lambda each: each["rank"])
    ] == [(rule, rank, by) for rank in range(2)]
    assert all(event["remedy"].endswith(".") for event in found)
    assert (tmp_path / "run" / "console.log").read_text().count("[deadpool] NOT EXACT:") == 1


@pytest.mark.parametrize("kind", [pytest.param("zip2", marks=_thorough), "accum_in_step"])
def test_what_is_exact_is_not_named(kind, tmp_path, shared):
    code, events = run(kind, tmp_path, shared)
    assert (code, findings(events)) == (0, [])


def test_what_a_step_that_was_cut_off_leaves_behind_is_not_named(tmp_path, shared):
    code, events = run("cut_handle", tmp_path, shared, "--marker", str(tmp_path / "victim"), spare_trainers=1)
    assert len([event for event in events if event["what"] == "fault"]) == 1
    assert (code, findings(events)) == (0, [])


def test_store_that_a_rank_serves_is_named_before_the_first_step(tmp_path, shared):
    """It is gone with its node: the rank that serves it says so, and no other."""
    code, events = run("ownstore", tmp_path, shared, on_inexact="stop")
    assert code == 1
    (served,) = [event for event in findings(events) if event["rule"] == "served_store"]
    assert served["rank"] == 0 and "step" not in served
    assert not [event for event in events if event["what"] == "fault"]


def test_job_stops_before_its_next_step_if_told_to(tmp_path, shared):
    code, events = run("zip1", tmp_path, shared, on_inexact="stop")
    assert code == 1
    (failed,) = [event for event in events if event["what"] == "failed"]
    assert failed["reason"].startswith("rank ") and "write zip(job.steps(n), loader), steps first" in failed["reason"]
    assert [event for event in events if event["what"] == "fault"] == []


def test_child_that_the_script_forks_ends_as_under_plain_python(tmp_path, shared):
    code, events = run("forkexit", tmp_path, shared)
    assert code == 0, (tmp_path / "run" / "console.log").read_text()
    for rank in range(2):
        lines = (tmp_path / "out" / f"told{rank}.jsonl").read_text().splitlines()
        told = [json.loads(line) for line in lines]
        assert [line for line in told if line != "at exit"] == [
            *("step 0 child 7", "step 1 child 1", "step 2 child 0"),
        ]
        assert told.count("at exit") == 4  # of three children and the trainer
    assert [event for event in events if event["what"] == "fault"] == []


@_thorough
def test_child_that_comes_to_the_end_of_the_script_ends_there(tmp_path, shared):
    code, _ = run("forked_to_the_end", tmp_path, shared)
    assert code == 0, (tmp_path / "run" / "console.log").read_text()
    assert (tmp_path / "out" / "told0.jsonl").read_text() == '"child 0"\n'


def _has(what: str, **fields: Any) -> Callable[[Events], bool]:
    return lambda events: any(event["what"] == what and fields.items() <= event.items() for event in events)


@pytest.mark.parametrize("kind", ["cleandir", pytest.param("cleandir_loudly", marks=_thorough)])
def test_rehearsal_never_removes_files_of_the_job(kind, tmp_path, shared):
    """Where the script does not ignore the error, its rehearsal fails. Both are told while nothing is lost yet."""
    told = _has("rehearsed", rank=0) if kind == "cleandir" else _has("trainer_lost")
    code, events = run(kind, tmp_path, shared, gate=told, spares=1)
    assert code == 0
    assert len(list((tmp_path / "out" / "checkpoints").iterdir())) == 8
    refused = [event for event in findings(events) if "A rehearsal was kept from" in event["found"]]
    assert {(event["rule"], event["rank"]) for event in refused} == {("files_before_loop", 0)}
    assert "if deadpool.first_start:" in refused[0]["remedy"]


@_thorough
def test_what_asks_for_the_first_start_is_not_named(tmp_path, shared):
    code, events = run("cleandir_once", tmp_path, shared, gate=_has("rehearsed"), spares=1)
    assert (code, findings(events)) == (0, [])
    lines = [(tmp_path / "out" / f"told{rank}.jsonl").read_text().splitlines() for rank in range(2)]
    assert lines == [['"first start True"', '"first start False"'], ['"first start True"']]


@_thorough
def test_removal_in_the_first_process_is_named_before_the_first_step(tmp_path, shared):
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    (tmp_path / "out" / "checkpoints" / "old").touch()
    code, events = run("cleandir", tmp_path, shared, on_inexact="stop")
    assert code == 1
    assert [event["rule"] for event in findings(events)] == ["files_before_loop"]
    assert not (tmp_path / "out" / "checkpoints" / "step0").exists()


@pytest.mark.parametrize("rehearsed", [True, pytest.param(False, marks=_thorough)])
def test_who_joins_opens_files_of_the_job_elsewhere_and_appends_to_them_once_it_is_live(tmp_path, shared, rehearsed):
    marker = ["--marker", str(tmp_path / "victim")]
    gate = _has("rehearsed", rank=1) if rehearsed else _has("protected")
    code, events = run("openw", tmp_path, shared, *marker, gate=gate, spare_trainers=int(rehearsed))
    assert code == 0
    lines = (tmp_path / "out" / "log1").read_text().splitlines()
    assert lines.count("begin") == 1  # of the first process
    assert list(dict.fromkeys(lines)) == ["begin", *(str(number) for number in range(8))]  # some may have been redone
    assert (tmp_path / "out" / "config.json").read_text() == "{}"
    assert {event["rule"] for event in findings(events)} == {"files_before_loop"}


def test_file_of_the_loop_that_a_newcomer_reads_is_named(tmp_path, shared):
    code, events = run("reads_own_file", tmp_path, shared, "--marker", str(tmp_path / "victim"))
    assert code == 0
    lines = (tmp_path / "out" / "told1.jsonl").read_text().splitlines()
    assert lines[0] == '"begins at 0"' and lines[1:] not in ([], ['"begins at 0"'])
    (finding,) = findings(events)
    assert (finding["rule"], finding["rank"]) == ("files_from_loop", 1)
    assert str(tmp_path / "out" / "state.json") in finding["found"] and "first_start" in finding["remedy"]
