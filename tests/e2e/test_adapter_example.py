"""An adapter of a library that DeadPool does not know, written after docs/howto/adapter.md.

Every rank prints the loss, the number of updates and the loss scale of every step. In step 9 a gradient is too large,
so that no optimizer steps.
"""

from __future__ import annotations

import pytest
from example_runs import EXAMPLES, ExampleJob, said
from torchrun import torchrun

from deadpool.errors import JobFailed

SCRIPT = EXAMPLES / "adapter_of_a_library.py"
STEPS, SKIPPED = 12, 9


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    printed = said(torchrun(2, tmp_path_factory.mktemp("torchrun"), str(SCRIPT), "--steps", str(STEPS)))
    assert len(printed) == 2 * STEPS + 2
    assert printed[f"rank 0 step {SKIPPED}"].split()[2:4] == printed[f"rank 0 step {SKIPPED - 1}"].split()[2:4]
    return printed


def run(folder, fork_server, *faults, script=SCRIPT, **settings):
    job = ExampleJob(folder / "run", fork_server, str(script), "--steps", str(STEPS), faults=faults, **settings)
    return job, job.run()


CASES = {
    "first step ever": ["at=forward step=0 node=n0"],
    "in forward": ["at=forward step=4 node=n1"],
    "in backward": ["at=backward step=5 rank=0"],
    "in the optimizer": ["at=optimizer step=6 node=n1"],
    "while a version is sent": ["at=wire step=7 node=n0"],
    "a step without an update": [f"at=backward step={SKIPPED} node=n1"],
    "after a step without an update": [f"at=forward step={SKIPPED + 1} rank=1"],
    "last step": [f"at=optimizer step={STEPS - 1} node=n0"],
    "three faults": ["at=forward step=2 rank=0", "at=backward step=5 rank=1", "at=optimizer step=10 node=n0"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_bit_identical_to_torchrun(tmp_path, fork_server, undisturbed, case):
    job, disturbed = run(tmp_path, fork_server, *CASES[case])
    assert disturbed == undisturbed
    assert len(job.events("fault")) == len(CASES[case])


@pytest.mark.thorough
def test_survivor_keeps_its_process_and_its_memory(tmp_path, fork_server, undisturbed):
    job, disturbed = run(
        tmp_path, fork_server, "at=backward step=5 rank=1"
    )  # its node has its copy, so no step is lost
    assert disturbed == undisturbed
    restored = [(event["trainer"], event["kept"]) for event in job.events("restored") if event["rank"] == 0]
    assert restored == [("n0.0", True)]


@pytest.mark.thorough
def test_survivors_do_not_keep_their_processes(tmp_path, fork_server, undisturbed):
    _, disturbed = run(tmp_path, fork_server, "at=backward step=5 node=n1", in_place="never")
    assert disturbed == undisturbed


def run_without(method, folder, fork_server, fault):
    """The same example, whose adapter lacks one method."""
    text = SCRIPT.read_text()
    assert text.count(f"    def {method}(self") == 1
    lacking = folder / f"without_{method}.py"
    lacking.write_text(text.replace(f"    def {method}(self", "    def never_called(self"))
    return run(folder, fork_server, fault, script=lacking)[1]


@pytest.mark.thorough
def test_old_copies_of_weights_change_the_losses(tmp_path, fork_server, undisturbed):
    """So the tests above can fail. The copies of a newcomer are those of its rehearsal."""
    assert run_without("seated", tmp_path, fork_server, "at=forward step=4 node=n0") != undisturbed


@pytest.mark.thorough
def test_what_a_step_left_behind_changes_the_losses_or_ends_the_job(tmp_path, fork_server, undisturbed):
    """How far the survivor had got with its buckets and handles differs from run to run."""
    try:
        disturbed = run_without("reset", tmp_path, fork_server, "at=backward step=5 node=n1")
    except JobFailed:
        return
    assert disturbed != undisturbed
