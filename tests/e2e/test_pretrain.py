"""Megatron-LM's own `pretrain`: with faults its losses and its state are those of an undisturbed run.

MEGATRON_LM names a folder with Megatron-LM of a tagged release, and megatron-core of that release is installed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from framework_run import WHILE_SENT, faults_after_audit, run_audited, run_framework
from gated_job import run_script_unprotected

from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import differences
from deadpool.errors import JobFailed

pytest.importorskip("megatron.core")
if "MEGATRON_LM" not in os.environ:
    pytest.skip("MEGATRON_LM names no folder with Megatron-LM: megatron cannot be tried", allow_module_level=True)
SCRIPT = Path(__file__).with_name("pretrain_script.py")
ITERATIONS = 10
COMMON = ["--train-iters", str(ITERATIONS)]
LAYOUTS = {
    "data parallel": ["--num-workers", "0"],
    "data parallel, bf16, distributed optimizer": [
        *("--num-workers", "0", "--bf16", "--use-distributed-optimizer", "--overlap-grad-reduce"),
    ],
    "workers, cyclic": ["--num-workers", "1", "--dataloader-type", "cyclic"],
    "tensor parallel": ["--num-workers", "0", "--tensor-model-parallel-size", "2"],
}
FAULTS = {
    "the first iteration": "at=forward step=0 node=n0",
    "between logs": "at=backward step=5 node=n1",
    "after an evaluation": "at=optimizer step=4 rank=1",
    "a copy": WHILE_SENT,
    "the last iteration": f"at=optimizer step={ITERATIONS - 1} rank=0",
}


@pytest.fixture(scope="module")
def fork_server():
    shared = SharedForkServer(forks_commands=True)
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def get(layout):
        if layout not in known:
            arguments = [*COMMON, *LAYOUTS[layout]]
            known[layout] = run_script_unprotected(SCRIPT, arguments, 2, tmp_path_factory.mktemp("plain") / "run")
        return known[layout]

    return get


@pytest.mark.thorough
@pytest.mark.parametrize("moment", FAULTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bit_identical_to_an_undisturbed_run(tmp_path, fork_server, undisturbed, layout, moment):
    arguments = [*COMMON, *LAYOUTS[layout]]
    gated, disturbed = run_framework(SCRIPT, tmp_path, fork_server, (FAULTS[moment],), arguments, None, {})
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed(layout), disturbed) == []
    assert len(disturbed.losses[0]) == ITERATIONS


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "fault"), faults_after_audit(LAYOUTS))
def test_audited_and_bit_identical(tmp_path, fork_server, undisturbed, record_property, layout, fault):
    arguments = [*COMMON, *LAYOUTS[layout]]
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, arguments)
    record_property("audit", verdict)
    assert differences(undisturbed(layout), disturbed) == []
    assert verdict == "exact"


@pytest.mark.thorough
def test_training_that_goes_on_from_a_checkpoint(tmp_path, fork_server):
    saved = ["--save", str(tmp_path / "saved"), "--save-interval", "4", "--ckpt-format", "torch"]
    run_script_unprotected(SCRIPT, ["--train-iters", "4", *LAYOUTS["data parallel"], *saved], 2, tmp_path / "before")
    arguments = [*COMMON, *LAYOUTS["data parallel"], "--load", str(tmp_path / "saved"), "--ckpt-format", "torch"]
    plain = run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "plain")
    fault = "at=backward step=3 node=n1"
    _, disturbed = run_framework(SCRIPT, tmp_path, fork_server, (fault,), arguments, None, {"in_place": "never"})
    assert differences(plain, disturbed) == [] and min(disturbed.losses[0]) == 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--iterations-to-skip", "3"], "--iterations-to-skip cannot be protected"),
        (["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"], "--overlap-param-gather"),
    ],
)
def test_what_could_not_be_redone_is_refused(tmp_path, fork_server, arguments, reason):
    with pytest.raises(JobFailed, match=reason):
        run_framework(SCRIPT, tmp_path, fork_server, (), [*COMMON, *LAYOUTS["data parallel"], *arguments], None, {})
