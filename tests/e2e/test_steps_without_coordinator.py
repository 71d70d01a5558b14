"""Steps go on without a coordinator, and afterwards a node loss is recovered as always."""

from __future__ import annotations

import itertools
import os
import signal
import statistics

import pytest
from gated_job import EVERY_STEP, NOISE, SMALL, GatedJob, run_script_unprotected
from waiting import wait_until

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import Results, differences
from deadpool_lab.workload.run import SCRIPT

ALONE = 40
"""Steps that are done while there is no coordinator. Whoever waits for one does not come to their end."""
GONE, BACK, LOST = ALONE, 2 * ALONE, 3 * ALONE
ARGUMENTS = ["--layout", "fsdp2", "--steps", str(4 * ALONE), *SMALL, *NOISE]


@pytest.mark.thorough
def test_coordinator_away_for_many_steps(tmp_path, fork_server) -> None:
    config = JobConfig(nodes=2, spares=1, **EVERY_STEP).checked()
    acts = " ".join(f"wait@{gate}:1" for gate in (GONE, BACK, LOST))
    gated = GatedJob(config, "fsdp2", acts, tmp_path / "job", fork_server, arguments=ARGUMENTS)

    def during() -> None:
        gated.trial.await_event("rehearsed")
        gated.await_gate(GONE)
        kill_coordinator(gated)
        gated.open_gate(GONE)
        reached = gated.folder / "gates" / f"reached-{BACK}"
        wait_until(reached.exists, "steps without a coordinator")  # which the launcher would start again
        assert gated.events("took_over") == []
        gated.trial.await_event("took_over")
        gated.open_gate(BACK)
        gated.kill_node_at_gate("n1", LOST)

    results = gated.trial.run(lambda _: during())
    print_step_times(results)
    assert [event["running"] for event in gated.events("took_over")] == [True]
    assert gated.seats() == ["n0", "n2"]
    assert differences(run_script_unprotected(SCRIPT, ARGUMENTS, 2, tmp_path / "reference"), results) == []


def kill_coordinator(gated: GatedJob) -> None:
    coordinator = gated.trial.job.coordinator
    assert coordinator is not None
    os.kill(coordinator.pid, signal.SIGKILL)


def print_step_times(results: Results) -> None:
    """For docs/benchmarks.md, by `pytest -s`: no test rests on how long a step takes."""
    ended = {each.step: each.ended for each in results.steps[0]}
    with_it, without = (
        [ended[b] - ended[a] for a, b in itertools.pairwise(range(begin + 1, begin + ALONE))] for begin in (0, GONE)
    )
    median = statistics.median(without) / statistics.median(with_it)
    print(f"steps without a coordinator, against those before: {median:.2f}; longest {max(without) / max(with_it):.2f}")
