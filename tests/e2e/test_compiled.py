"""Models whose blocks are compiled: survivors keep what they compiled, a newcomer compiles in its dry step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("compile_script.py")


@pytest.mark.parametrize("backend", ["aot_eager"])
@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_node_killed_in_mid_step(tmp_path, fork_server, layout, backend):
    arguments = ["--layout", layout, "--backend", backend]
    settings = JobConfig(nodes=2, spares=1, **EVERY_STEP).checked()
    gated = GatedJob(settings, layout, "wait@4:1", tmp_path / "job", fork_server, SCRIPT, arguments)

    def during(_):
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", 4)

    results = gated.trial.run(during)
    assert differences(run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "reference"), results) == []
    assert gated.seats() == ["n0", "n2"]


@pytest.mark.skipif(
    shutil.which("g++") is None, reason="no C compiler for C++ (g++), with which inductor compiles for CPUs"
)
def test_a_rank_that_was_not_rehearsed_compiles_nothing(tmp_path, fork_server):
    """Each node has a folder of its own for compiled code, as on machines without a shared disk, and each rank has code
    of its own. The spare has rehearsed rank 0, and rank 1 is lost."""
    arguments = ["--layout", "ddp", "--backend", "inductor", "--own-code"]
    folder = tmp_path / "code"
    settings = JobConfig(
        nodes=2, spares=1, rehearsals=1, compiled_folder=f"{folder}/{{node}}", prepare_timeout_s=600.0, **EVERY_STEP
    ).checked()
    gated = GatedJob(settings, "ddp", "wait@4:1", tmp_path / "job", fork_server, SCRIPT, arguments)

    def fetched_from() -> set[str]:
        return {event["source"] for event in gated.events("compiled_code_fetched") if event["files"]}

    def during(_):
        gated.trial.await_event("rehearsed")
        gated.trial.await_true(lambda: "n1" in fetched_from(), "the code of rank 1 on the spare")
        gated.kill_node_at_gate("n1", 4)

    results = gated.trial.run(during)
    assert gated.seats() == ["n0", "n2"]
    assert [event["rank"] for event in gated.events("rehearsed")] == [0], "rank 1 was not rehearsed"
    told = json.loads((gated.trial.out / "compiled-1.json").read_text())
    assert told["frames"]["ok"] > 0
    assert told["inductor"]["fxgraph_cache_hit"] > 0 and told["aot_autograd"]["autograd_cache_hit"] > 0
    assert "fxgraph_cache_miss" not in told["inductor"] and "autograd_cache_miss" not in told["aot_autograd"]
    assert differences(run_script_unprotected(SCRIPT, arguments, 2, tmp_path / "reference"), results) == []
