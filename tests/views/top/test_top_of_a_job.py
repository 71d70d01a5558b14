"""`deadpool show top` beside a real job: a node is drained by a key, and the story of it is read from the screen."""

from __future__ import annotations

import sys

import pytest
from tmux_screen import Screen, needs_tmux

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool_lab.workload.run import SCRIPT

SMALL = ["--layers", "2", "--width", "64", "--sequence", "32", "--vocabulary", "256"]


@needs_tmux
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_node_is_drained_by_a_key_and_the_story_is_shown(tmp_path):
    script = [str(SCRIPT), "--out", str(tmp_path / "out"), "--layout", "ddp", "--steps", "1000000", *SMALL]
    config = JobConfig(nodes=2, spares=1, node_timeout_s=60.0).checked()
    job = LocalJob(config, RunDir.create(tmp_path / "run"), script, quiet=True)
    top = [sys.executable, "-m", "deadpool.cli.main", "show", "top", str(tmp_path / "run")]
    with running(job), Screen(80, 24).running(top) as screen:
        screen.await_text(lambda text: text.startswith("RUNNING") and "protected" in text)
        screen.await_text(lambda text: "spares 1" in text and ">n0" in text)
        screen.press("d")
        screen.await_text(lambda text: "Drain node n0?" in text)
        screen.press("y")
        screen.await_text(lambda text: "node n0 leaves; its ranks go to n2" in text or "is being drained" in text)
        screen.await_text(lambda text: "spares 0" in text and "recoveries 1" in text)
        screen.press("g")  # any key takes the answer to the last one away
        text = screen.await_text(lambda text: "n0 " not in text and "NO SPARE" in text)
        assert "n2" in text and "goodput" in text
        screen.press("s")
        text = screen.await_text(lambda text: "drain-1:" in text)
        assert "0 completed steps redone" in text and "handover" in text
        screen.press("q")
        screen.await_text(lambda text: "ENDED 0" in text)
