"""Steps take as long without a coordinator as with one, and afterwards a node loss is recovered as always."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import time

import pytest
from stage import NOISE, SMALL, Stage, run_script_unprotected

from deadpool.config import JobConfig
from deadpool.workload.harness import SCRIPT
from deadpool.workload.results import Results, differences

ALONE = 40
"""Steps that are done while there is no coordinator, and as many before that to compare them with."""
ARGUMENTS = ["--layout", "fsdp2", "--steps", str(4 * ALONE), *SMALL, *NOISE]
NOT_MORE_THAN = 1.3
STANDS_OUT = 2.5
"""Times the longest of the others: machines that run tests are busy. Whoever waits for a coordinator waits for seconds,
which are hundreds of steps."""


@pytest.mark.thorough
def test_coordinator_away_for_many_steps(tmp_path, fork_server) -> None:
    config = JobConfig(nodes=2, spares=1, overhead_budget=0.0).checked()
    stage = Stage(config, "fsdp2", "", tmp_path / "job", fork_server, script=SCRIPT, arguments=ARGUMENTS)
    away: list[float] = []

    def during() -> None:
        stage.trial.await_event("rehearsed")
        stage.trial.await_step(stage.trial.results().newest_step() + ALONE)
        away.append(_kill_coordinator(stage))
        _await_steps_without_launcher(stage, ALONE)
        away.append(time.time())
        stage.trial.await_event("took_over")
        stage.await_committed(stage.trial.results().newest_step() + 1)
        stage.trial.job.kill_node("n1")

    results = stage.trial.run(lambda _: during())
    with_it, without = _step_times(results, 0.0, away[0])[-ALONE:], _step_times(results, *away)
    assert len(without) >= ALONE - 1
    assert statistics.median(without) <= NOT_MORE_THAN * statistics.median(with_it)
    assert max(without) <= STANDS_OUT * max(with_it)
    assert [event["running"] for event in stage.events("took_over")] == [True]
    assert stage.seats() == ["n0", "n2"]
    assert differences(run_script_unprotected(SCRIPT, ARGUMENTS, 2, tmp_path / "reference"), results) == []


def _kill_coordinator(stage: Stage) -> float:
    coordinator = stage.trial.job.coordinator
    assert coordinator is not None
    os.kill(coordinator.pid, signal.SIGKILL)
    return time.time()


def _await_steps_without_launcher(stage: Stage, count: int) -> None:
    """It would start the coordinator again."""
    deadline, begin = time.monotonic() + 60.0, stage.trial.results().newest_step()
    while stage.trial.results().newest_step() < begin + count:
        assert time.monotonic() < deadline, "no steps without a coordinator"
        time.sleep(0.05)


def _step_times(results: Results, since: float, until: float) -> list[float]:
    """Of rank 0, from one end of a step to the next."""
    ends = [each.ended for each in results.steps[0] if since <= each.ended <= until]
    return [later - earlier for earlier, later in itertools.pairwise(ends)]
