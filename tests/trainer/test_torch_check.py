"""A torch that nobody has tried: what DeadPool relies on is tried before the first group is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from strange_torch import STRANGE

from deadpool.trainer.torch_check import Level

pytestmark = pytest.mark.e2e

PLAIN = {
    "pass_another_keyword": "a process group with topology='ring' cannot be used",
    "lack_an_attribute": "FakeProcessGroup has no _create_internal",
    "rename_classes": "torch._C._distributed_c10d has no FakeProcessGroup",
    "change_a_signature": "missing 1 required keyword-only argument: 'mode'",
    "take_sizes_from_elsewhere": "the group of rank 2 of 4 says (rank, size) (0, 1) in a rehearsal",
    "keep_the_first_backend": "a fake backend that is put over a real one is not reached",
}
REFUSED = {"refuse_stores": "init_process_group() got an unexpected keyword argument"}


def verdict_of(strange: str | None) -> tuple[str, str]:
    """In a process that has done nothing else, as the fork server of a node."""
    found = "from deadpool.trainer.torch_check import examine; print(*examine(), sep='|')"
    script = f"import strange_torch; {found}" if strange else found
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **({"STRANGE_TORCH": strange} if strange else {})}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    level, _, reason = done.stdout.strip().rpartition("\n")[2].partition("|")
    return level, reason


def test_this_torch_has_everything():
    assert verdict_of(None) == (str(Level.WHOLE), "")


@pytest.mark.parametrize("strange", PLAIN)
def test_what_is_missing_is_named_and_nothing_private_is_used(strange):
    level, reason = verdict_of(strange)
    assert level == str(Level.PLAIN)
    assert reason.startswith("DeadPool relies on something that torch 2.99.0 does not have: ")
    assert PLAIN[strange] in reason and "every process of the job is replaced" in reason


@pytest.mark.parametrize("strange", REFUSED)
def test_torch_without_which_nothing_works_is_refused_in_words(strange):
    level, reason = verdict_of(strange)
    assert level == str(Level.REFUSED)
    assert reason.startswith("DeadPool cannot work with torch 2.99.0: ") and REFUSED[strange] in reason


def test_every_stand_in_is_tried():
    assert set(STRANGE) == set(PLAIN) | set(REFUSED)
