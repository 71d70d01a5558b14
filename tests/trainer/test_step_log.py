"""Step times become events around faults only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from deadpool.trainer.step_reports import AFTERWARDS, REMEMBERED, StepLog


@dataclass
class Told:
    """Takes what a session would send."""

    rank: int = 2
    records: list[dict[str, Any]] = field(default_factory=list)

    def send(self, report) -> None:
        self.records.extend(report.records)


@pytest.fixture
def told():
    return Told()


def complete(log: StepLog, numbers) -> None:
    for number in numbers:
        log.completed(number, 0.01)


def test_quiet_training_tells_nothing(told):
    log = StepLog(told)
    complete(log, range(10 * REMEMBERED))
    log.close()
    assert told.records == []


def test_fault_tells_the_steps_before_it(told):
    log = StepLog(told)
    complete(log, range(REMEMBERED + 9))
    log.report()
    (record,) = told.records
    assert (record["what"], record["rank"], record["step"]) == ("step_times", 2, 9)
    assert len(record["seconds"]) == REMEMBERED
    assert record["began"] + sum(record["seconds"]) == pytest.approx(record["t"], abs=1e-3)
    assert "cause" not in record, "it is no part of a fault's story"


def test_recovery_tells_the_steps_after_it_once(told):
    log = StepLog(told)
    complete(log, range(7))
    log.report()
    log.resumed()
    complete(log, range(6, 6 + 3 * AFTERWARDS))
    assert [(r["step"], len(r["seconds"])) for r in told.records] == [(0, 7), (6, AFTERWARDS)]


def test_job_that_ends_soon_after_a_recovery_tells_what_there_was(told):
    log = StepLog(told)
    log.resumed()
    complete(log, range(4))
    log.close()
    assert [(r["step"], len(r["seconds"])) for r in told.records] == [(0, 4)]
