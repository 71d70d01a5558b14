"""The walks of docs/architecture.md are walked: a node of a real job dies, and each function that an arrow names is
called, not before the arrow ahead of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob
from walks import Function, walks

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer

GATE, LAST = 3, 7
TRACE = Path(__file__).with_name("call_trace")
Calls = dict[str, list[float]]


@pytest.fixture
def traced_fork_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedForkServer]:
    named = {function for walk in walks().values() for function in walk}
    assert [str(function) for function in named if not function.exists()] == []
    (tmp_path / "functions").write_text("\n".join(sorted(map(str, named))))
    monkeypatch.setenv("CALL_TRACE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TRACE), os.environ.get("PYTHONPATH", "")]))
    server = SharedForkServer(forks_commands=True)
    yield server
    server.close()


def test_each_arrow_is_called_and_in_this_order(tmp_path: Path, traced_fork_server: SharedForkServer) -> None:
    assert [len(walk) > 10 for walk in walks().values()] == [True] * 3
    settings = {**EVERY_STEP, "overhead_budget": 1e-9}  # every capture costs more: the interval is widened
    config = JobConfig(nodes=2, spares=1, rehearse_recovery=False, **settings).checked()
    gated = GatedJob(config, "plain", f"wait@{GATE}:0 wait@{LAST}:0", tmp_path / "job", traced_fork_server)

    def during() -> None:
        gated.trial.await_event("rehearsed")
        (rehearsed,) = gated.events("rehearsed")
        gated.kill_node_at_gate(f"n{rehearsed['rank']}", GATE, committed=False)
        gated.await_gate(LAST)
        gated.trial.await_event("capture_interval")
        gated.open_gate(LAST)

    gated.trial.run(lambda _: during())
    calls = _read(tmp_path / "calls")
    assert {title: _missed(walk, calls) for title, walk in walks().items()} == {title: [] for title in walks()}


def test_a_function_that_is_not_there_is_noticed() -> None:
    assert Function("deadpool.trainer.job", "Job.steps").exists()
    assert not Function("deadpool.trainer.job", "Job.no_such_method").exists()
    assert not Function("deadpool.trainer.no_such_file", "Job.steps").exists()


def test_what_is_not_called_or_called_too_early_is_noticed() -> None:
    first, second, third = (Function("deadpool.module", name) for name in ("first", "second", "third"))
    calls = {str(first): [2.0], str(second): [1.0]}
    assert _missed([first, second, third], calls) == [f"{second} is called before {first}", f"{third} is not called"]


def _read(path: Path) -> Calls:
    calls: Calls = {}
    for line in path.read_text().splitlines():
        at, _, function = line.partition(" ")
        calls.setdefault(function, []).append(float(at))
    return calls


def _missed(walk: list[Function], calls: Calls) -> list[str]:
    """What is wrong with a walk. Arrows of different processes may overlap, so each has only to be called after the one
    ahead of it was called for the first time."""
    missed, ahead = [], None
    for function in walk:
        at = calls.get(str(function))
        if at is None:
            missed.append(f"{function} is not called")
            continue
        if ahead is not None and max(at) < min(calls[str(ahead)]):
            missed.append(f"{function} is called before {ahead}")
        ahead = function
    return missed
