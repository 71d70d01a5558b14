"""Loops with Megatron-Core: faults at any moment, in any layout, leave losses and state as they would have been."""

from __future__ import annotations

import pytest
from framework_run import AUDITED_STEPS, faults_after_audit, run_audited
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected
from megatron_cells import FAULTS, LAYOUTS, SCRIPT, STEPS

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import Results, differences
from deadpool.errors import JobFailed

pytest.importorskip("megatron.core")
QUICK = {("dp, distributed optimizer, all overlaps", "backward"), ("tp x pp", "forward")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known: dict[str, Results] = {}

    def get(layout: str) -> Results:
        if layout not in known:
            ranks, arguments = LAYOUTS[layout]
            folder = tmp_path_factory.mktemp("unprotected") / "run"
            known[layout] = run_script_unprotected(SCRIPT, arguments, ranks, folder)
        return known[layout]

    return get


def run(folder, fork_server, layout, *faults, more=(), **settings):
    ranks, arguments = LAYOUTS[layout]
    wanted = {"nodes": ranks, "spares": 1, **EVERY_STEP, **settings}
    config = JobConfig(faults=faults, **wanted).checked()
    gated = GatedJob(config, "plain", "", folder / "job", fork_server, SCRIPT, [*arguments, *more])
    return gated, gated.trial.run()


def cells():
    for layout in LAYOUTS:
        for moment in FAULTS:
            marks = [] if (layout, moment) in QUICK else [pytest.mark.thorough]
            yield pytest.param(layout, moment, marks=marks)


@pytest.mark.parametrize(("layout", "moment"), list(cells()))
def test_bit_identical_to_torchrun(tmp_path, fork_server, undisturbed, layout, moment):
    gated, disturbed = run(tmp_path, fork_server, layout, FAULTS[moment])
    assert len(gated.events("fault")) == 1
    assert differences(undisturbed(layout), disturbed) == []
    assert len(disturbed.losses[0]) == STEPS
    assert gated.events("replicas_differ") == []


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "fault"), faults_after_audit(LAYOUTS))
def test_audited_and_bit_identical(tmp_path, fork_server, record_property, layout, fault):
    ranks, arguments = LAYOUTS[layout][0], ["--steps", str(AUDITED_STEPS), *LAYOUTS[layout][1]]
    undisturbed = run_script_unprotected(SCRIPT, arguments, ranks, tmp_path / "unprotected")
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, fault, arguments, nodes=ranks)
    record_property("audit", verdict)
    assert differences(undisturbed, disturbed) == []
    assert verdict == "exact"


@pytest.mark.thorough
@pytest.mark.parametrize("layout", LAYOUTS)
def test_survivors_do_not_keep_their_processes(tmp_path, fork_server, undisturbed, layout):
    _, disturbed = run(tmp_path, fork_server, layout, "at=backward step=3 node=n1", in_place="never")
    assert differences(undisturbed(layout), disturbed) == []


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["dp, distributed optimizer, all overlaps", "pp, interleaved"])
def test_survivor_keeps_its_process_and_its_memory(tmp_path, fork_server, undisturbed, layout):
    gated, disturbed = run(tmp_path, fork_server, layout, "at=backward step=3 node=n1")
    assert differences(undisturbed(layout), disturbed) == []
    assert gated.trainers()[0] == "n0.0"
    assert [event["kept"] for event in gated.events("restored") if event["rank"] == 0] == [True]


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["dp, distributed optimizer, all overlaps", "ep", "pp, interleaved"])
def test_several_faults(tmp_path, fork_server, undisturbed, layout):
    faults = ["at=forward step=1 rank=0", "at=backward step=3 rank=1", "at=optimizer step=4 node=n0"]
    gated, disturbed = run(tmp_path, fork_server, layout, *faults)
    assert differences(undisturbed(layout), disturbed) == []
    assert len(gated.events("fault")) == 3


REFUSED = {
    "no zeroing": (["--no-zeroing"], "zero_grad_buffer"),
    "qk_clip": (["--refused", "qk_clip"], "qk_clip cannot be protected"),
    "cuda graphs": (["--refused", "enable_cuda_graph"], "CUDA graphs cannot be protected"),
    "activations on the host": (["--refused", "cpu_offloading"], "offloading of activations cannot"),
    "never tried": (["--refused", "tp_comm_overlap"], "tp_comm_overlap was never tried"),
    "reruns": (["--reruns"], "rerun state machine cannot be protected"),
    "precision-aware": (["--refused-update", "use_precision_aware_optimizer"], "use_precision_aware_optimizer cannot"),
    "offloaded": (["--refused-update", "optimizer_cpu_offload"], "optimizer_cpu_offload cannot"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_be_redone_is_refused(tmp_path, fork_server, case):
    arguments, reason = REFUSED[case]
    with pytest.raises(JobFailed, match=reason):
        run(tmp_path, fork_server, "dp", more=arguments)
