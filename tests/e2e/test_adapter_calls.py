"""When and in which order `protect(adapters=...)` calls what it was given, as docs/howto/adapter.md tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences

SCRIPT = Path(__file__).with_name("adapter_script.py")
AT = 4


def both(*calls):
    """Adapters are called in the order of the list."""
    return [f"{name} {call}" for call in calls for name in ("one", "two")]


REHEARSAL = [
    *both("begins to rehearse"),
    "two has rehearsed",  # contexts end in the other order
    "one has rehearsed",
]
REHEARSED = [*REHEARSAL, *REHEARSAL, *both("reset")]  # of both wishes for dry steps, 1 and 2, the higher counts
SEATED = f"seated at {AT} after {AT} steps"


def lose_rank_0(folder, fork_server, *arguments):
    """Its node dies in a step, once the spare has rehearsed its rank. Returns the calls of each process, by rank."""
    config = JobConfig(nodes=2, spares=1, **EVERY_STEP).checked()
    gated = GatedJob(config, "plain", f"wait@{AT}:0", folder / "job", fork_server, SCRIPT, list(arguments))

    def during(_):
        gated.trial.await_event("rehearsed")
        gated.await_committed(AT)
        gated.kill_node_at_gate("n0", AT)

    results = gated.trial.run(during)
    assert differences(run_script_unprotected(SCRIPT, [], 2, folder / "unprotected"), results) == []
    calls = {rank: [] for rank in (0, 1)}
    for path in gated.trial.out.glob("calls-*"):
        calls[int(path.name.split("-")[1])].append(path.read_text().splitlines())
    return calls


@pytest.mark.thorough
def test_survivor_and_rehearsed_spare(tmp_path, fork_server):
    calls = lose_rank_0(tmp_path, fork_server)
    assert both("reset", SEATED, "resumed") in calls[1]
    assert [*REHEARSED, *both(SEATED, "resumed")] in calls[0]


@pytest.mark.thorough
def test_newcomer_dies_while_it_is_seated(tmp_path, fork_server):
    """The survivor is seated again, and a process that starts now has no time for a rehearsal."""
    calls = lose_rank_0(tmp_path, fork_server, "--dies")
    assert both("reset", SEATED, SEATED, "resumed") in calls[1]
    assert [*REHEARSED, f"one {SEATED}"] in calls[0]
    assert both("reset", SEATED, "resumed") in calls[0]
