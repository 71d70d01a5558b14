"""Models whose blocks are compiled: survivors keep what they compiled, a newcomer compiles in its dry step."""

from __future__ import annotations

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
