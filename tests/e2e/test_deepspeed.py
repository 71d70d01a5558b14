"""DeepSpeed's engine with ZeRO stages 0 to 3: faults at any moment leave losses, counters and state as they would have been."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage, run_script_unprotected

from deadpool.config import JobConfig
from deadpool.workload.results import differences

pytest.importorskip("deepspeed")
SCRIPT = Path(__file__).with_name("deepspeed_script.py")
STEPS = 10


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What torchrun gives; each kind is run once."""
    known = {}

    def get(arguments, ranks=2):
        key = (tuple(arguments), ranks)
        if key not in known:
            folder = tmp_path_factory.mktemp("unprotected") / "run"
            known[key] = run_script_unprotected(SCRIPT, list(arguments), ranks, folder)
        return known[key]

    return get


def run(folder, fork_server, *faults, arguments=(), **settings):
    config = JobConfig(**{"nodes": 2, "spares": 1, "faults": faults, **EVERY_STEP, **settings}).checked()
    stage = Stage(config, "plain", "", folder / "job", fork_server, SCRIPT, list(arguments))
    return stage, stage.trial.run()


MOMENTS = {
    "first step, forward": "at=forward step=0 node=n0",
    "first step, optimizer": "at=optimizer step=0 node=n1",
    "second step": "at=backward step=1 rank=1",
    "forward": "at=forward step=4 rank=0",
    "backward": "at=backward step=5 node=n1",
    "reduce": "at=reduce step=5 node=n0",
    "optimizer": "at=optimizer step=6 node=n1",
    "while a version is sent": "at=wire step=5 node=n1",
    "last step": f"at=optimizer step={STEPS - 1} rank=0",
}
THRESHOLDS = """{"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 2000,
    "stage3_max_live_parameters": 5000, "stage3_max_reuse_distance": 1000, "sub_group_size": 3000}"""
KINDS = {
    "0 fp32": ["--stage", "0", "--dtype", "fp32"],
    "0 bf16": ["--stage", "0", "--dtype", "bf16"],
    "0 fp16": ["--stage", "0", "--dtype", "fp16"],
    "1 bf16": ["--stage", "1"],
    "1 fp16": ["--stage", "1", "--dtype", "fp16", "--overflow", "3", "4", "8"],
    "2 bf16": ["--stage", "2"],
    "2 fp16": ["--stage", "2", "--dtype", "fp16", "--overflow", "3", "4", "8"],
    "3 bf16": ["--stage", "3", "--zero", '{"stage3_param_persistence_threshold": 100}'],
    "3 fp16": ["--stage", "3", "--dtype", "fp16", "--overflow", "3", "4", "8", "--zero", THRESHOLDS],
    "3 fp32": ["--stage", "3", "--dtype", "fp32", "--zero", '{"sub_group_size": 2000}'],
}


@pytest.mark.thorough
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_bit_identical_to_torchrun(tmp_path, fork_server, undisturbed, kind, moment):
    stage, disturbed = run(tmp_path, fork_server, MOMENTS[moment], arguments=KINDS[kind])
    assert len(stage.events("fault")) == 1
    assert differences(undisturbed(KINDS[kind]), disturbed) == []
    assert len(disturbed.losses[0]) == STEPS
