"""torchtitan's Trainer, whose loop is its own: faults at any moment leave the losses as they would have been."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from framework_run import AUDITED_STEPS, faults_after_audit, run_audited
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected
from torchrun import torchrun

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences
from deadpool.errors import JobFailed

if importlib.util.find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed", allow_module_level=True)
SCRIPT = Path(__file__).with_name("torchtitan_script.py")
EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 8
USUAL = ["--checkpoints", "3", "--validate", "3"]


@pytest.fixture(scope="module")
def fork_server():
    """torchtitan takes 9 s to import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(EXAMPLES), prepend=":")
        shared = SharedForkServer(["torchtitan_cpu", "torchtitan.trainer"])
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What torchtitan gives without DeadPool; each kind is run once."""
    known: dict[tuple[str, ...], Results] = {}

    def get(*arguments: str, ranks: int = 2) -> Results:
        key = (str(ranks), *arguments)
        if key not in known:
            folder = tmp_path_factory.mktemp("unprotected") / "run"
            known[key] = run_script_unprotected(SCRIPT, list(arguments), ranks, folder)
        return known[key]

    return get


def run(folder, fork_server, *faults, arguments=USUAL, **settings):
    config = JobConfig(**{"nodes": 2, "spares": 1, "faults": faults, **EVERY_STEP, **settings}).checked()
    gated = GatedJob(config, "plain", "", folder / "job", fork_server, SCRIPT, list(arguments))
    return gated, gated.trial.run()


CASES = {
    "first step ever": ["at=forward step=0 node=n0"],
    "in the middle": ["at=backward step=4 node=n1"],
    "in the update": ["at=optimizer step=5 node=n0"],
    "after a checkpoint and a validation": ["at=forward step=3 rank=1"],
    "while a version is sent": ["at=wire step=4 node=n1"],
    "last step": [f"at=optimizer step={STEPS - 1} rank=0"],
}
QUICK = ("in the middle",)


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.thorough) for case in CASES]
)
def test_bit_identical_to_torchtitan(tmp_path, fork_server, undisturbed, case):
    gated, disturbed = run(tmp_path, fork_server, *CASES[case])
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed(*USUAL), disturbed) == []
    assert len(disturbed.losses[0]) == STEPS


def test_survivor_keeps_its_process_and_its_memory(tmp_path, fork_server, undisturbed):
    gated, disturbed = run(tmp_path, fork_server, "at=backward step=4 node=n1")
    assert differences(undisturbed(*USUAL), disturbed) == []
    assert gated.trainers()[0] == "n0.0"
    assert [event["kept"] for event in gated.events("restored") if event["rank"] == 0] == [True]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["at=backward step=4 node=n1", "at=forward step=0 rank=0"])
def test_survivors_do_not_keep_their_processes(tmp_path, fork_server, undisturbed, fault):
    _, disturbed = run(tmp_path, fork_server, fault, in_place="never")
    assert differences(undisturbed(*USUAL), disturbed) == []


@pytest.mark.thorough
def test_without_a_spare(tmp_path, fork_server, undisturbed):
    _, disturbed = run(tmp_path, fork_server, "at=backward step=4 rank=1", spares=0)
    assert differences(undisturbed(*USUAL), disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kill", ["saving:3:0", "saved:3:1", "saving:6:1", "saving:8:0", "validation:3:1", "validation:6:0"]
)
def test_killed_in_a_checkpoint_or_a_validation(tmp_path, fork_server, undisturbed, kill):
    gated, disturbed = run(tmp_path, fork_server, arguments=[*USUAL, "--kill", kill])
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed(*USUAL), disturbed) == []
    saved = sorted(path.parent.name for path in (tmp_path / "job/out/dump/checkpoint").glob("*/.metadata"))
    assert saved[-1] == "step-8"


@pytest.mark.thorough
def test_several_faults(tmp_path, fork_server, undisturbed):
    faults = ["at=forward step=1 rank=0", "at=backward step=4 rank=1", "at=optimizer step=6 node=n0"]
    gated, disturbed = run(tmp_path, fork_server, *faults)
    assert differences(undisturbed(*USUAL), disturbed) == []
    assert len(gated.events("fault")) == 3


LAYOUTS = {
    "HSDP": ["--replicate", "2"],
    "FSDP2 x TP": ["--tp", "2"],
    "FSDP2 x TP of full DTensors": ["--tp", "2", "--spmd", "full_dtensor"],
    "DDP": ["--replicate", "4"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", ["at=backward step=3 node=n1", "at=forward step=2 rank=0"])
def test_layouts(tmp_path, fork_server, undisturbed, layout, fault):
    arguments = ["--steps", "5", *LAYOUTS[layout]]
    gated, disturbed = run(tmp_path, fork_server, fault, arguments=arguments, nproc_per_node=2)
    assert differences(undisturbed(*arguments, ranks=4), disturbed) == []
    assert len(gated.events("fault")) == 1


AUDITED = {"FSDP2": (1, USUAL), **{layout: (2, arguments) for layout, arguments in LAYOUTS.items()}}


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "fault"), faults_after_audit(AUDITED))
def test_audited_and_bit_identical(tmp_path, fork_server, undisturbed, record_property, layout, fault):
    per_node, arguments = AUDITED[layout][0], ["--steps", str(AUDITED_STEPS), *AUDITED[layout][1]]
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, arguments, nproc_per_node=per_node)
    record_property("audit", verdict)
    assert differences(undisturbed(*arguments, ranks=2 * per_node), disturbed) == []
    assert verdict == "exact"


VARIANTS = {
    "torchtitan's own main": [*USUAL, "--main"],
    "no accumulation": ["--accumulation", "1"],
    "loss in chunks, everything checkpointed": ["--chunked", "--ac", "full"],
    "seldom logged": ["--log-every", "3", "--steps", "9"],
    "data that ends": ["--finite", "--rows", "22"],
    "data that begins again": ["--rows", "10"],
    "random data": ["--random-data"],
    "another seed": ["--seed", "0"],
    "profiler and TensorBoard": ["--profile", "--tensorboard"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("step", [2, 4])
def test_other_trainings(tmp_path, fork_server, undisturbed, variant, step):
    arguments = VARIANTS[variant]
    fault = f"at=backward step={step} node=n{step // 2 % 2}"
    gated, disturbed = run(tmp_path, fork_server, fault, arguments=arguments)
    assert differences(undisturbed(*arguments), disturbed) == []
    assert len(gated.events("fault")) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("in_place", ["auto", "never"])
@pytest.mark.parametrize("fault", ["at=backward step=4 node=n0", "at=backward step=0 node=n1"])
def test_cut_off_in_a_loss_of_chunks(tmp_path, fork_server, undisturbed, fault, in_place):
    """The output layer is gathered at other times then; a second fault would be the hang that follows from it."""
    arguments = ["--chunked", "--ac", "none", "--steps", "6"]
    gated, disturbed = run(tmp_path, fork_server, fault, arguments=arguments, in_place=in_place)
    assert differences(undisturbed(*arguments), disturbed) == []
    assert len(gated.events("fault")) == 1


@pytest.mark.thorough
def test_workers(tmp_path, fork_server):
    """Processes of the other runner may have no children."""
    arguments = ["--workers", "2", "--checkpoints", "3"]
    torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "unprotected"), *arguments)
    _, disturbed = run(tmp_path, fork_server, "at=backward step=4 node=n1", arguments=arguments)
    assert differences(Results.read(tmp_path / "unprotected"), disturbed) == []


@pytest.mark.thorough
def test_job_that_began_with_a_checkpoint(tmp_path, fork_server, undisturbed):
    """The newcomer would find a newer checkpoint than the one that the job began with."""
    first, again = ["--checkpoints", "3", "--steps", "4"], ["--checkpoints", "2", "--steps", "9"]
    results = []
    for name, is_protected in (("plain", False), ("job", True)):
        (tmp_path / name).mkdir()
        torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / name / "out"), *first)
        for path in (tmp_path / name / "out").glob("*.jsonl"):
            path.unlink()
        if is_protected:
            results.append(run(tmp_path, fork_server, "at=backward step=3 node=n1", arguments=again)[1])
        else:
            torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / name / "out"), *again)
            results.append(Results.read(tmp_path / name / "out"))
    assert differences(*results) == []
    assert sorted(results[0].losses[0]) == [4, 5, 6, 7, 8]


@pytest.mark.thorough
def test_data_that_goes_on_elsewhere_is_not_used(tmp_path, fork_server):
    """Its state does not have the epoch: a fresh process would train on rows of the first one."""
    arguments = ["--rows", "10", "--forgetful"]
    with pytest.raises(JobFailed, match="gives other batches than it gave"):
        run(tmp_path, fork_server, "at=backward step=5 node=n1", arguments=arguments)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--checkpoints", "3", "--async-mode", "async"], "a thread communicates")],
)
def test_what_could_not_be_redone_is_refused(tmp_path, fork_server, arguments, reason):
    with pytest.raises(JobFailed, match=reason):
        run(tmp_path, fork_server, arguments=arguments)
