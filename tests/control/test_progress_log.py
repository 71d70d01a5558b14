"""How far the job is goes into its log often at first, rarely in a long job, and not while it stands still."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import psutil

from deadpool.control.machine_facts import machine_facts
from deadpool.control.progress_log import ProgressLog


def core(step: int) -> SimpleNamespace:
    members = {"n0": SimpleNamespace(steps={0: step}, is_spare=False), "n1": SimpleNamespace(steps={}, is_spare=True)}
    permit = SimpleNamespace(watermark=SimpleNamespace(number=step - 1))
    return SimpleNamespace(members=members, commits=SimpleNamespace(permit=permit), overhead=None)


def due_times(log: ProgressLog, begin: int, end: int) -> list[int]:
    return [now for now in range(begin, end) if log.is_due(float(now))]


def test_gaps_grow_with_the_age_of_the_job():
    log = ProgressLog()
    assert due_times(log, 1_000, 1_010) == list(range(1_000, 1_010))
    later = due_times(log, 1_600, 1_700)
    assert {b - a for a, b in itertools.pairwise(later)} <= {10, 11, 12}
    last = due_times(log, 1_000_000, 1_000_200)
    assert {b - a for a, b in itertools.pairwise(last)} == {30}


def test_event_has_the_figures_and_comes_once_per_step():
    log, facts = ProgressLog(), {"n0": {"bytes_pushed": 5, "arena_bytes": 7}, "n1": {"arena_bytes": 1}}
    record = log.event(core(12), facts).record(t=0.0)
    assert record["step"] == 12 and record["watermark"] == 11 and record["spares"] == 1
    assert record["bytes_pushed"] == 5 and record["arena_bytes"] == 8
    assert log.event(core(12), facts) is None
    assert log.event(core(13), facts) is not None


def test_machine_tells_its_memory_and_no_speed_of_loopback():
    assert machine_facts("127.0.0.1") == {"memory_bytes": psutil.virtual_memory().total, "link_gbps": None}
