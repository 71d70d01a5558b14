"""A device that errs without a word: the replicas tell, the steps are computed again, and the run ends as undisturbed.

One bit of a parameter or of a moment flips after an optimizer step. A gate holds all ranks in the step after it until
the job has noticed, so that no speed of the machine decides what is found.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, NOISE, SMALL, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import JobFailed, differences
from deadpool_lab.workload.run import SCRIPT

BAD_STEP = 20  # enough versions are committed before it: the claim of replication counts as having been true
GATES = (BAD_STEP + 1, BAD_STEP + 2, BAD_STEP + 3)
STEPS = BAD_STEP + 8


def arguments(layout: str) -> list[str]:
    return ["--layout", layout, "--steps", str(STEPS), *SMALL, *NOISE]


@pytest.fixture
def make_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., GatedJob]:
    def make(layout: str, fault: str, **config: object) -> GatedJob:
        faults = (f"step={BAD_STEP} {fault}",)
        settings = {"spares": 1, "slots": 4, "drills": True, "faults": faults, **EVERY_STEP, **config}
        acts = " ".join(f"wait@{gate}:0" for gate in GATES)
        checked = JobConfig(**settings).checked()
        return GatedJob(checked, layout, acts, tmp_path / "job", fork_server, arguments=arguments(layout))

    return make


def await_faults(gated: GatedJob, count: int) -> None:
    """Each is noticed while all ranks stand in the step after the one that was computed wrongly."""
    for number in range(count):
        gated.await_gate(GATES[number])
        gated.trial.await_event("fault", number + 1)
        gated.open_gate(GATES[number])
    for gate in GATES[count:]:
        gated.open_gate(gate)


def is_undisturbed(gated: GatedJob, world_size: int, folder: Path, faults: int) -> None:
    results = gated.trial.run(lambda _: await_faults(gated, faults))
    reference = run_script_unprotected(SCRIPT, arguments(gated.layout), world_size, folder / "reference")
    assert differences(reference, results) == []
    assert {event["kind"] for event in gated.events("fault")} == {"corruption"}


def test_one_of_three_is_outvoted_and_keeps_its_rank_once(make_job, tmp_path):
    gated = make_job("ddp", "flip=parameter rank=1", nodes=3)
    is_undisturbed(gated, 3, tmp_path, faults=1)
    (found,) = gated.events("corruption_found")
    assert (found["node"], found["ranks"], found["found"]) == ("n1", [1], "outvoted")
    assert found["step"] == BAD_STEP + 1, "the version after that step"
    assert gated.seats() == ["n0", "n1", "n2"] and gated.events("quarantined") == []


@pytest.mark.thorough
def test_device_that_always_errs_is_replaced(make_job, tmp_path):
    gated = make_job("ddp", "flip=moment rank=1 lasts=always", nodes=3)
    is_undisturbed(gated, 3, tmp_path, faults=2)
    assert [event["node"] for event in gated.events("corruption_found")] == ["n1", "n1"]
    assert [event["node"] for event in gated.events("quarantined")] == ["n1"]
    assert gated.seats() == ["n0", "n3", "n2"], "the spare"


@pytest.mark.thorough
def test_of_two_the_one_that_changes_has_erred(make_job, tmp_path):
    gated = make_job("ddp", "flip=parameter rank=1", nodes=2)
    is_undisturbed(gated, 2, tmp_path, faults=1)
    assert [event["ranks"] for event in gated.events("corruption_suspected")] == [[0, 1]]
    (found,) = gated.events("corruption_found")
    assert (found["node"], found["found"]) == ("n1", "changed")
    assert gated.seats() == ["n0", "n1"]


@pytest.mark.thorough
def test_shard_that_has_one_replica(make_job, tmp_path):
    gated = make_job("hsdp", "flip=moment rank=3", nodes=4)
    is_undisturbed(gated, 4, tmp_path, faults=1)
    (suspected,) = gated.events("corruption_suspected")
    assert 3 in suspected["ranks"] and len(suspected["ranks"]) == 2, "the group of that shard"
    assert [event["node"] for event in gated.events("corruption_found")] == ["n3"]


def test_two_that_repeat_themselves_end_the_job_with_what_is_good(make_job):
    gated = make_job("ddp", "flip=parameter rank=1 lasts=always", nodes=2)
    with pytest.raises(JobFailed):
        gated.trial.run(lambda _: await_faults(gated, 3))
    (unsolved,) = gated.events("corruption_unsolved")
    assert unsolved["ranks"] == [0, 1] and unsolved["stops"]
    assert gated.events("corruption_found") == [], "nobody can tell who it is"
    assert gated.events("salvaging")[0]["step"] <= BAD_STEP
