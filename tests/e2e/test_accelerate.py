"""Accelerate: a loop of one's own over what prepare returns, and scripts that `accelerate launch` starts. With a fault
the losses are those of Accelerate's own run under its own launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from framework_run import WHILE_SENT, faults_after_audit, run_audited, run_framework
from gated_job import run_script_unprotected

from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences
from deadpool.errors import JobFailed
from deadpool_lab.workload.run import LIMIT_S

pytest.importorskip("accelerate")
SCRIPT = Path(__file__).with_name("accelerate_script.py")
TRAINER = SCRIPT.with_name("trainer_script.py")
LAUNCHED = SCRIPT.with_name("launched_script.py")
UPDATES, PER_EPOCH = 18, 6
"""42 rows on 2 ranks, 2 per batch, 2 batches per update: 11 batches a rank, and the last update of an epoch has one."""
CONFIGURATION = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
machine_rank: 0
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
use_cpu: false
"""


@pytest.fixture(scope="module")
def fork_server():
    shared = SharedForkServer(["accelerate"], forks_commands=True)
    yield shared
    shared.close()


def run(folder, fork_server, *faults, script=SCRIPT, arguments=(), gate=None, **settings):
    return run_framework(script, folder, fork_server, faults, list(arguments), gate, settings)


def launch(script: Path, out: Path, options: list[str], *arguments: str) -> Results:
    """Accelerate's own launcher, on this machine."""
    command = [sys.executable, "-m", "accelerate.commands.launch", *options, "--main_process_port", "0"]
    made = subprocess.run(
        [*command, str(script), "--out", str(out), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return Results.read(out)


def in_place_of_launch(script: Path, options: list[str]) -> list[str]:
    return ["--launcher", "deadpool.integrations.accelerate", "--options", " ".join(options), "--script", str(script)]


@pytest.fixture
def configuration(tmp_path: Path) -> list[str]:
    (tmp_path / "accelerate.yaml").write_text(CONFIGURATION)
    return ["--config_file", str(tmp_path / "accelerate.yaml")]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["at=backward step=8 node=n1", "at=optimizer step=5 node=n0"])
def test_loop_of_ones_own_in_place_of_accelerate_launch(tmp_path, fork_server, configuration, fault):
    """The configuration asks for bf16, which nothing else does."""
    plain = launch(SCRIPT, tmp_path / "plain", configuration)
    arguments = in_place_of_launch(SCRIPT, configuration)
    gated, disturbed = run(tmp_path, fork_server, fault, script=LAUNCHED, arguments=arguments)
    assert len(gated.events("fault")) == 1
    assert differences(plain, disturbed) == []
    assert len(disturbed.losses[0]) == UPDATES and "bf16" in plain.losses[0][0]


@pytest.mark.thorough
def test_trainer_in_place_of_accelerate_launch(tmp_path, fork_server, configuration):
    """The script knows nothing of DeadPool: one module stands for the launcher, one protects what calls train()."""
    pytest.importorskip("transformers")
    plain = launch(TRAINER, tmp_path / "plain", configuration, "--unchanged")
    options = [*configuration, "-m", "deadpool.integrations.transformers"]
    arguments = [*in_place_of_launch(TRAINER, options), "--unchanged"]
    fault = "at=backward step=8 node=n1"
    gated, disturbed = run(tmp_path, fork_server, fault, script=LAUNCHED, arguments=arguments)
    assert len(gated.events("fault")) == 1
    assert differences(plain, disturbed) == []


DATA = {
    "shuffled": [],
    "workers": ["--workers", "2"],
    "stream, read by the first rank": ["--stream"],
    "stream, read by each rank": ["--stream", "--no-dispatch"],
}
FAULTS = {
    "the first update": "at=forward step=0 node=n0",
    "an epoch": "at=backward step=8 node=n1",
    "the last update of an epoch": f"at=optimizer step={PER_EPOCH - 1} node=n1",
    "the first update of an epoch": f"at=forward step={PER_EPOCH} rank=0",
    "a copy": WHILE_SENT,
}


def undisturbed_by(tmp_path, arguments):
    return launch(SCRIPT, tmp_path / "plain", ["--multi_gpu", "--num_processes", "2"], *arguments)


@pytest.mark.thorough
@pytest.mark.parametrize("moment", FAULTS)
@pytest.mark.parametrize("kind", DATA)
def test_bit_identical_to_accelerate_launch(tmp_path, fork_server, kind, moment):
    undisturbed = undisturbed_by(tmp_path, DATA[kind])
    gated, disturbed = run(tmp_path, fork_server, FAULTS[moment], arguments=DATA[kind])
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed, disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "fault"), faults_after_audit(DATA))
def test_audited_and_bit_identical(tmp_path, fork_server, record_property, kind, fault):
    undisturbed = undisturbed_by(tmp_path, DATA[kind])
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, DATA[kind])
    record_property("audit", verdict)
    assert differences(undisturbed, disturbed) == []
    assert verdict == "exact"


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1, 9])
def test_training_that_goes_on_from_a_checkpoint(tmp_path, fork_server, step):
    """A process that starts later loads the checkpoint too, and then newer state from the others."""
    run_script_unprotected(SCRIPT, ["--save-at", "4"], 2, tmp_path / "before")
    arguments = ["--load", str(tmp_path / "before" / "out" / "checkpoint")]
    undisturbed = undisturbed_by(tmp_path, arguments)
    fault = f"at=backward step={step} node=n1"
    _, disturbed = run(tmp_path, fork_server, fault, arguments=arguments, in_place="never")
    assert differences(undisturbed, disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--wrong-end"], "a step has ended between two updates"),
        (["--as-it-is"], r"use batches = endless\(loader\)"),
    ],
)
def test_what_could_not_be_redone_is_refused(tmp_path, fork_server, arguments, reason):
    with pytest.raises(JobFailed, match=reason):
        run(tmp_path, fork_server, arguments=arguments)
