"""Delays at gates: none unless they are asked for, and the same again for the same seed."""

from __future__ import annotations

import pytest

from deadpool_lab.workload import run


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What would have been slept, in a process that has been nowhere yet."""
    delays: list[float] = []
    monkeypatch.setattr(run, "_visits", type(run._visits)())
    monkeypatch.setattr(run.time, "sleep", delays.append)
    monkeypatch.delenv(run.VARIABLE, raising=False)
    return delays


def test_nobody_waits_unless_it_is_asked_for(slept):
    run.pause("gate 3")
    assert slept == []


def test_the_same_seed_gives_the_same_delays(slept, monkeypatch):
    monkeypatch.setenv(run.VARIABLE, "7")
    monkeypatch.setenv("RANK", "1")
    for _ in range(3):
        run.pause("gate 3")
    run._visits.clear()
    for _ in range(3):
        run.pause("gate 3")
    assert slept[:3] == slept[3:]
    assert len(set(slept)) == 3 and all(0.0 <= each <= run.LONGEST_S for each in slept)


@pytest.mark.parametrize("changed", [{run.VARIABLE: "8"}, {"RANK": "2"}])
def test_another_seed_or_rank_gives_other_delays(slept, monkeypatch, changed):
    for name, value in {run.VARIABLE: "7", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    run.pause("gate 3")
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    run.pause("gate 3")
    assert len(set(slept)) == 2


def test_a_test_has_delays_of_its_own(slept, monkeypatch):
    monkeypatch.setenv(run.VARIABLE, "7")
    monkeypatch.delenv("RANK", raising=False)
    for test in ("test_one", "test_other"):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", test)
        run.pause("gate 3")
    assert len(set(slept)) == 2
