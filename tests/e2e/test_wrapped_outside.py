"""Scripts that protect the module inside of a wrapper, which a recovery would leave in pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_job import GatedJob

from deadpool.config.job_config import JobConfig
from deadpool.errors import JobFailed

SCRIPT = Path(__file__).with_name("wrapped_script.py")
ITSELF = r"pass the DistributedDataParallel module itself, as in protect\(model=ddp\)"


def make_gated_job(folder, fork_server, way):
    return GatedJob(JobConfig(nodes=2, spares=0).checked(), "", "", folder / "job", fork_server, SCRIPT, ["--way", way])


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("inside", f"around Sequential, but not the wrapper: {ITSELF}"),
        ("later", f"around Linear, but not the wrapper: {ITSELF}"),
        ("fsdp1", r"FullyShardedDataParallel around Sequential cannot be protected: .*fully_shard would be accepted"),
    ],
)
def test_module_inside_of_a_wrapper_is_refused(tmp_path, fork_server, way, said):
    with pytest.raises(JobFailed, match=said):
        make_gated_job(tmp_path, fork_server, way).trial.run()


def test_wrapper_that_was_dropped_does_no_harm(tmp_path, fork_server):
    gated = make_gated_job(tmp_path, fork_server, "dropped")
    gated.trial.run()
    assert "ended well" in gated.trial.console()
