"""One number for one moment, wherever it is told: loop, status, events, journal, checkpoints, orders, story.

docs/glossary.md (How steps are counted) says it in words: step N is the one that the loop counts as N, from 0 on, and
version N is the state after N completed steps, in which step N begins.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gated_job import ENDED, EVERY_STEP, STEPS, GatedJob, workload

from deadpool.config.job_config import JobConfig
from deadpool.durable.manifest import Manifest, complete_ones
from deadpool.durable.store import open_store
from deadpool_lab.workload.run import LIMIT_S

LAST_VERSION_COMES = " ".join(
    f"{what}@{step}:{rank}"
    for what, step in (("wait", STEPS - 1), ("room", STEPS - 1), ("wait", ENDED))
    for rank in (0, 1)
)
"""All ranks stand in the last step until its version is committed and the next one has room, and then after their loop
until that one is committed too: else it might find no free slot, or the job be over first."""
AT = 4
"""The step in which a rank stands at a gate, while everybody is asked how far the job is. Then its node is killed."""


def deadpool(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deadpool.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def journal_of(run: Path) -> list[int]:
    lines = [json.loads(line) for line in deadpool("show", "journal", run, "--rank", 0).stdout.splitlines()]
    return [line["step"] for line in lines]


def checkpoints(where: Path) -> list[Manifest]:
    return complete_ones(open_store(str(where)))


@pytest.mark.thorough
def test_all_places_tell_the_same_number_for_the_same_moment(run_and_compare, fork_server, tmp_path):
    where = tmp_path / "store"
    settings = {"durable": str(where), "durable_every": "1h", "durable_nice": 0, **EVERY_STEP}
    config = JobConfig(nodes=2, spares=1, **settings).checked()
    words = [*workload("ddp"), "--journal"]
    gated = GatedJob(config, "ddp", f"wait@{AT}:1 {LAST_VERSION_COMES}", tmp_path / "job", fork_server, arguments=words)
    run = gated.trial.job.run_dir.path

    def journal_is_written() -> bool:
        return journal_of(run) == list(range(AT))

    def during() -> None:
        gated.await_gate(AT)
        gated.await_committed(AT)
        gated.trial.await_true(lambda: reached(gated.status()), "heartbeats of both ranks")
        gated.trial.await_true(journal_is_written, "the journal of all steps that are final")
        shows_where_the_job_is(run, gated.status())
        names_the_checkpoint(run, where)
        refuses_what_is_past(run)
        gated.kill_node_at_gate("n1", AT)
        gated.open_committed_gate(STEPS - 1)
        gated.await_gate(ENDED)
        gated.await_committed(STEPS)
        gated.open_gate(ENDED)

    run_and_compare(gated, during)
    tells_where_it_resumed(gated)
    ends_with_as_many_steps_as_were_asked_for(gated, where)


def reached(status: dict[str, Any]) -> bool:
    return all(step == AT for node in status["nodes"] for step in node["steps"].values())


def shows_where_the_job_is(run: Path, status: dict[str, Any]) -> None:
    """The step that the loop is in, which is as many as are completed."""
    assert (status["step"], status["watermark"], status["lag_steps"]) == (AT, AT, 0)
    words = deadpool("status", run).stdout
    assert f"at step {AT} ({AT} steps are completed)" in words and f"every copy of version {AT} is in place" in words


def names_the_checkpoint(run: Path, where: Path) -> None:
    asked = deadpool("durable", "now", run)
    (made,) = checkpoints(where)
    assert asked.stdout == f"checkpoint after {AT} steps: {made.name}\n", asked.stderr
    assert made.step == AT and made.name.startswith(f"step-{AT:09}-")
    assert deadpool("durable", "list", where).stdout.startswith(f"{made.name}: after {AT} steps, ")
    assert f"durable checkpoint: after {AT} steps" in deadpool("status", run).stdout


def refuses_what_is_past(run: Path) -> None:
    """Step 3 is over when 4 steps are completed."""
    past = deadpool("node", "kill", run, "--rank", 1, "--at", "backward", "--step", AT - 1)
    assert past.returncode == 2
    assert f"step={AT - 1} is past: rank 1 has completed {AT} steps" in past.stderr


def tells_where_it_resumed(gated: GatedJob) -> None:
    run = gated.trial.job.run_dir.path
    (recovery,) = json.loads(deadpool("show", "story", run, "--cause", "fault-1", "--json").stdout)
    assert (recovery["resume_step"], recovery["lost_steps"]) == (AT, 0)
    assert f"resumed at step {AT}, 0 completed steps redone" in deadpool("show", "story", run).stdout
    of_fault = [event for event in gated.trial.events() if event.get("cause") == "fault-1"]
    assert {event["step"] for event in of_fault if event["what"] in ("planned", "resumed")} == {AT}


def ends_with_as_many_steps_as_were_asked_for(gated: GatedJob, where: Path) -> None:
    """The last step is one less: the first is 0."""
    assert gated.events("progress")[-1]["step"] == STEPS
    assert checkpoints(where)[0].step == STEPS
    assert journal_of(gated.trial.job.run_dir.path) == list(range(STEPS))
