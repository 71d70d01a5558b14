"""The forked ranks that other tests compare with give what torchrun gives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from gated_job import run_unprotected, workload
from unprotected import run_ranks

from deadpool.demo.trial import Results, differences
from deadpool_lab.workload.run import SCRIPT


@pytest.mark.thorough
def test_forked_ranks_and_torchrun_agree(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(SCRIPT), "--out", str(tmp_path / "torchrun"), *workload("fsdp2")],
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout.decode()
    forked = run_unprotected("fsdp2", 2, tmp_path / "forked")
    assert differences(Results.read(tmp_path / "torchrun"), forked) == []


def test_rank_that_does_not_end_is_named(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text("import os, threading\nif os.environ['RANK'] == '1':\n    threading.Event().wait()\n")
    with pytest.raises(AssertionError, match=r"ranks \[1\] had not ended") as told:
        run_ranks(script, [], 2, tmp_path / "console.log", deadline_s=20.0)
    assert "waits.py" in str(told.value), "its stacks"
