"""A torch that nobody has tried: what DeadPool relies on is tried before the first group is made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from strange_torch import STRANGE
from waiting import LIMIT_S

from deadpool.control.trainers.fork_client import answer, start_fork_server
from deadpool.trainer.process.torch_check import Level

pytestmark = pytest.mark.e2e

PLAIN = {
    "pass_another_keyword": "a process group with topology='ring' cannot be used",
    "lack_an_attribute": "FakeProcessGroup has no _create_internal",
    "rename_classes": "torch._C._distributed_c10d has no FakeProcessGroup",
    "change_a_signature": "missing 1 required keyword-only argument: 'mode'",
    "take_sizes_from_elsewhere": "the group of rank 2 of 4 says (rank, size) (0, 1) in a rehearsal",
    "take_sizes_from_the_newest_backend": "a group with another backend says of itself (rank, size) (0, 2)",
    "make_nccl_by_another_class": "is made by a class that is none of ProcessGroupNCCL and ProcessGroupNCCL2",
    "choose_devices_by_another_function": "positional argument",
    "lose_the_class_of_nccl": "torch._C._distributed_c10d has no ProcessGroupNCCL",
    "keep_gradients_elsewhere": "fully_shard keeps its parameters or their gradients elsewhere",
    "know_one_more_flag": "a pipeline schedule says by _layout_initialized how far it is initialised",
    "broadcast_by_another_method": "broadcast does not pass through a method of ProcessGroup that is known",
    "lose_gloo": "torch._C._distributed_c10d has no ProcessGroupGloo",
    "lose_works": "torch._C._distributed_c10d has no Work",
    "lose_stages": "torch.distributed.pipelining has no PipelineStage",
    "lose_sharded_modules": "torch.distributed.fsdp has no FSDPModule",
    "crash": "its self-test crashed with SIGSEGV",
    "keep_the_first_backend": "a fake backend that is put over a real one is not reached",
}
REFUSED = {
    "refuse_stores": "init_process_group() got an unexpected keyword argument",
    "lose_types_of_backends": "has no attribute 'BackendType'",
}
UNIMPORTABLE = "lose_sharded_tensors"


EACH_IN_A_CHILD = """
import json, os, sys
import torch, torch.distributed.fsdp, torch.distributed.pipelining
for strange in ["", *sys.argv[1:]]:
    if os.fork():
        os.wait()
        continue
    if strange:
        os.environ["STRANGE_TORCH"] = strange
        import strange_torch
    from deadpool.trainer.process.torch_check import examine
    level, reason = examine()
    print(json.dumps([strange, level.value, reason]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def verdicts() -> dict[str, tuple[Level, str]]:
    """By stand-in; of this torch under an empty name. Each in a process in which nothing of DeadPool has looked at
    torch before, as in the fork server of a node."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", EACH_IN_A_CHILD, *STRANGE]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {strange: (Level(level), reason) for strange, level, reason in found}


def test_this_torch_has_everything(verdicts):
    assert verdicts[""] == (Level.WHOLE, "")


def test_another_version_with_everything_is_not_taken_for_one_that_lacks_something(verdicts):
    assert verdicts["have_another_number"] == (Level.WHOLE, "")


@pytest.mark.parametrize("strange", PLAIN)
def test_what_is_missing_is_named_and_nothing_private_is_used(verdicts, strange):
    level, reason = verdicts[strange]
    assert level is Level.PLAIN
    assert reason.startswith("DeadPool relies on something that torch 2.99.0 does not have: ")
    assert PLAIN[strange] in reason and "every process of the job is replaced" in reason


@pytest.mark.parametrize("strange", REFUSED)
def test_torch_without_which_nothing_works_is_refused_in_words(verdicts, strange):
    level, reason = verdicts[strange]
    assert level is Level.REFUSED
    assert reason.startswith("DeadPool cannot work with torch 2.99.0: ") and REFUSED[strange] in reason


def answer_of_a_fork_server(strange: str, folder: Path) -> list[str]:
    """The first thing that the process says in which the trainers of a job are forked."""
    (folder / "sitecustomize.py").write_text("import strange_torch\n")
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    link, process = start_fork_server({**os.environ, "PYTHONPATH": path, "STRANGE_TORCH": strange})
    try:
        return answer(link, wait=True) or []
    finally:
        link.close()
        process.wait()


@pytest.mark.parametrize(
    "strange",
    [
        "lose_gloo",
        *(
            pytest.param(f"lose_{what}", marks=pytest.mark.thorough)
            for what in ("types_of_backends", "works", "stages")
        ),
    ],
)
def test_trainers_can_be_forked_where_a_name_is_missing(strange, tmp_path):
    """They say themselves what is missing, each by its level."""
    assert answer_of_a_fork_server(strange, tmp_path) == ["ready"]


def test_torch_with_which_nothing_can_be_imported_is_refused_in_words(tmp_path):
    failed, reason = answer_of_a_fork_server(UNIMPORTABLE, tmp_path)
    assert failed == "failed"
    assert reason == (
        "DeadPool cannot work with torch 2.99.0: cannot import name 'DTensor' from 'torch.distributed.tensor'. Another "
        "version of torch is needed"
    )


def test_every_stand_in_is_tried():
    assert set(STRANGE) == {*PLAIN, *REFUSED, UNIMPORTABLE, "have_another_number"}
