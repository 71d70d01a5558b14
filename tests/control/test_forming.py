"""Whether a job on this machine can still begin after an agent has ended."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from deadpool.control.launch import launcher
from deadpool.control.launch.launcher import Forming
from deadpool.control.launch.run_dir import RunDir


def say(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    async def answer(_: RunDir) -> dict[str, str]:
        return {"phase": phase}

    monkeypatch.setattr(launcher, "ask_status", answer)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_UNWRITTEN_S", -1.0)
    say(monkeypatch, "forming")


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "run")


def tell(run_dir: RunDir, what: str) -> None:
    with run_dir.events.open("a") as file:
        print(json.dumps({"t": time.time(), "what": what}), file=file)


def test_agent_ends_before_the_job_begins(run_dir: RunDir) -> None:
    job = Forming(run_dir)
    tell(run_dir, "joined")
    assert not job.is_hopeless([])
    assert job.is_hopeless(["n0"])


def test_agent_ends_after_that(run_dir: RunDir) -> None:
    job = Forming(run_dir)
    tell(run_dir, "planned")
    assert not job.is_hopeless(["n0"])
    run_dir.events.unlink()
    assert not job.is_hopeless(["n0"]), "a job begins once"


def test_plan_of_an_earlier_job_in_the_folder_is_none_of_this_one(run_dir: RunDir) -> None:
    tell(run_dir, "planned")
    assert Forming(run_dir).is_hopeless(["n0"])


def test_event_on_its_way_to_a_slow_disk_is_waited_for(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_UNWRITTEN_S", 1000.0)
    assert not Forming(run_dir).is_hopeless(["n0"])


def test_disk_that_was_full_from_the_beginning_has_no_plan(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "running")
    assert not Forming(run_dir).is_hopeless(["n0"])
    monkeypatch.undo()
    monkeypatch.setattr(launcher, "_UNWRITTEN_S", -1.0)
    assert not Forming(run_dir).is_hopeless(["n0"]), "nobody answers, so nobody knows"
