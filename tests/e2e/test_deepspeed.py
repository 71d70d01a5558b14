"""DeepSpeed's engine with ZeRO stages 0 to 3: faults at any moment leave losses and state as they would have been."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from framework_run import faults_after_audit, run_audited
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected
from ports import reserved_port

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences
from deadpool.errors import JobFailed
from deadpool_lab.workload.run import LIMIT_S

pytest.importorskip("deepspeed")
SCRIPT = Path(__file__).with_name("deepspeed_script.py")
STEPS = 10
GENTLE = """{"stage3_param_persistence_threshold": 100}"""
TIGHT = """{"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 2000,
    "stage3_max_live_parameters": 5000, "stage3_max_reuse_distance": 1000, "sub_group_size": 3000}"""


@pytest.fixture(scope="module")
def fork_server():
    """DeepSpeed takes long to import."""
    shared = SharedForkServer(["deepspeed"])
    yield shared
    shared.close()


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
    gated = GatedJob(config, "plain", "", folder / "job", fork_server, SCRIPT, list(arguments))
    return gated, gated.trial.run()


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
KINDS = {
    "0 fp32": ["--stage", "0", "--dtype", "fp32"],
    "0 bf16": ["--stage", "0", "--dtype", "bf16"],
    "0 fp16": ["--stage", "0", "--dtype", "fp16"],
    "1 bf16": ["--stage", "1"],
    "1 fp16": ["--stage", "1", "--dtype", "fp16", "--overflow", "3", "4", "8"],
    "2 bf16": ["--stage", "2"],
    "2 fp16": ["--stage", "2", "--dtype", "fp16", "--overflow", "3", "4", "8"],
    "3 bf16": ["--stage", "3", "--zero", GENTLE],
    "3 fp16": ["--stage", "3", "--dtype", "fp16", "--overflow", "3", "4", "8", "--zero", TIGHT],
    "3 fp32": ["--stage", "3", "--dtype", "fp32", "--zero", '{"sub_group_size": 2000}'],
}


@pytest.mark.thorough
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_bit_identical_to_torchrun(tmp_path, fork_server, undisturbed, kind, moment):
    gated, disturbed = run(tmp_path, fork_server, MOMENTS[moment], arguments=KINDS[kind])
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed(KINDS[kind]), disturbed) == []
    assert len(disturbed.losses[0]) == STEPS


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "fault"), faults_after_audit(KINDS))
def test_audited_and_bit_identical(tmp_path, fork_server, undisturbed, record_property, kind, fault):
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, KINDS[kind])
    record_property("audit", verdict)
    assert differences(undisturbed(KINDS[kind]), disturbed) == []
    assert verdict == "exact"


def deepspeed_command(out: Path, arguments: list[str]) -> Results:
    """DeepSpeed's own launcher, on this machine."""
    world = base64.urlsafe_b64encode(json.dumps({"localhost": [0, 1]}).encode()).decode()
    with reserved_port() as port:
        made = subprocess.run(
            [
                *(sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={world}", f"--master_port={port}"),
                *(str(SCRIPT), "--out", str(out), *arguments),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert made.returncode == 0, made.stdout + made.stderr
    return Results.read(out)


@pytest.mark.thorough
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_in_place_of_the_deepspeed_command(tmp_path, fork_server, stage):
    """With a hostfile of two slots, and --local_rank, which the script refuses if it is not its own."""
    arguments = ["--stage", str(stage)]
    plain = deepspeed_command(tmp_path / "plain", arguments)
    (tmp_path / "hosts").write_text("one slots=1\ntwo slots=1\n")
    launcher = ["--launcher", "deadpool.integrations.deepspeed", "--options", f"--hostfile {tmp_path / 'hosts'}"]
    config = JobConfig(nodes=2, spares=1, faults=("at=backward step=5 node=n1",), **EVERY_STEP).checked()
    launched = [*launcher, "--script", str(SCRIPT), *arguments]
    script = SCRIPT.with_name("launched_script.py")
    gated = GatedJob(config, "plain", "", tmp_path / "job", fork_server, script, launched)
    assert differences(plain, gated.trial.run()) == []
    assert len(gated.events("fault")) == 1


VARIANTS = {
    "four micro batches": ["--accumulation", "4"],
    "no accumulation, no clipping": ["--accumulation", "1", "--clip", "0"],
    "scattered gradients": ["--scattered"],
    "overlap": ["--overlap"],
    "a large parameter": ["--bucket", "500"],
    "recomputed activations": ["--recompute"],
    "a frozen parameter": ["--frozen"],
    "timers": ["--more", '{"wall_clock_breakdown": true}'],
    "momentum": ["--kind", "SGD"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_trainings(tmp_path, fork_server, undisturbed, variant, stage):
    arguments = ["--stage", str(stage), *VARIANTS[variant]]
    moment = ("backward", "optimizer", "forward")[stage - 1]
    stage_, disturbed = run(tmp_path, fork_server, f"at={moment} step=5 node=n1", arguments=arguments)
    assert len(stage_.events("fault")) == 1
    assert differences(undisturbed(arguments), disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["0 fp16", "1 fp16", "2 fp16", "3 fp16"])
@pytest.mark.parametrize("step", [3, 4, 5])
def test_around_an_overflow(tmp_path, fork_server, undisturbed, kind, step):
    """Steps 3 and 4 are skipped: the fault comes in each of them, and in the one after."""
    _, disturbed = run(tmp_path, fork_server, f"at=backward step={step} rank=0", arguments=KINDS[kind])
    assert differences(undisturbed(KINDS[kind]), disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["0 fp16", "1 bf16", "2 fp16", "3 bf16"])
def test_survivors_do_not_keep_their_processes(tmp_path, fork_server, undisturbed, kind):
    fault = "at=backward step=5 node=n1"
    _, disturbed = run(tmp_path, fork_server, fault, arguments=KINDS[kind], in_place="never")
    assert differences(undisturbed(KINDS[kind]), disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["0 bf16", "1 bf16", "2 bf16", "3 bf16"])
def test_survivor_keeps_its_process_and_its_memory(tmp_path, fork_server, undisturbed, kind):
    gated, disturbed = run(tmp_path, fork_server, "at=backward step=5 node=n1", arguments=KINDS[kind])
    assert differences(undisturbed(KINDS[kind]), disturbed) == []
    assert gated.trainers()[0] == "n0.0"
    assert [event["kept"] for event in gated.events("restored") if event["rank"] == 0] == [True]
    assert gated.events("replicas_differ") == [] and gated.events("dry_step_failed") == []


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["2 bf16", "3 fp16"])
def test_four_ranks_and_several_faults(tmp_path, fork_server, undisturbed, kind):
    faults = ["at=optimizer step=2 node=n1", "at=backward step=6 rank=0"]
    gated, disturbed = run(tmp_path, fork_server, *faults, arguments=KINDS[kind], nproc_per_node=2)
    assert len(gated.events("fault")) == 2
    assert differences(undisturbed(KINDS[kind], 4), disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_checkpoint_of_a_job_is_that_of_torchrun(tmp_path, fork_server, stage):
    """It is saved after a recovery, and a plain run goes on from it as from the one that torchrun has saved."""
    arguments = ["--stage", str(stage), "--save-at", "6"]
    plain = run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "plain")
    stage_, disturbed = run(tmp_path, fork_server, "at=backward step=5 node=n1", arguments=arguments)
    assert differences(plain, disturbed) == []
    saved = {"job": stage_.trial.out, "plain": tmp_path / "plain" / "out"}
    went_on = [
        run_script_unprotected(
            SCRIPT, ["--stage", str(stage), "--load", str(out / "checkpoint")], 2, tmp_path / f"from {name}"
        )
        for name, out in saved.items()
    ]
    assert differences(*went_on) == []


@pytest.mark.thorough
def test_job_begins_with_a_checkpoint(tmp_path, fork_server):
    saving = ["--stage", "2", "--save-at", "4"]
    run_script_unprotected(SCRIPT, saving, 2, tmp_path / "saved")
    arguments = ["--stage", "2", "--load", str(tmp_path / "saved" / "out" / "checkpoint")]
    plain = run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "plain")
    _, disturbed = run(tmp_path, fork_server, "at=optimizer step=0 node=n1", arguments=arguments)
    assert differences(plain, disturbed) == []


ANY_OPTIMIZER = ("--more", '{"zero_force_ds_cpu_optimizer": false}')


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--wrong-end"], "a step has ended between two updates"),
        (["--wrong-end", "--stage", "3"], "a step has ended between two updates"),
        (["--stage", "3", "--skip-block", "4"], "no gradient in the first micro batch"),
        (
            ["--stage", "2", "--zero", '{"offload_optimizer": {"device": "cpu"}}', *ANY_OPTIMIZER],
            "offload_optimizer cannot be protected",
        ),
        (["--more", '{"flops_profiler": {"enabled": true}}'], "flops_profiler cannot be protected"),
    ],
)
def test_what_could_not_be_redone_is_refused(tmp_path, fork_server, arguments, reason):
    with pytest.raises(JobFailed, match=reason):
        run(tmp_path, fork_server, arguments=arguments)
