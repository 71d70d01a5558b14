"""What an operator has after a recovery: a rank's lines in the logs of both processes that held it, structured lines
with the cause, and a hook that was called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from deadpool_lab.workload.run import LIMIT_S


def logs(gated, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deadpool.cli.main", "show", "logs", str(gated.trial.job.run_dir.path)]
    return subprocess.run([*command, *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.thorough
def test_rank_that_moved_is_followed_lines_are_structured_and_a_hook_is_called(
    make_gated_job, run_and_compare, tmp_path
):
    hook = f"recovered=cat > {tmp_path}/told"
    gated = make_gated_job("ddp", acts="say@3:1 wait@4:1 say@6:1", log_format="json", on_event=(hook,))
    run_and_compare(gated, lambda: gated.kill_node_at_gate("n1", 4))

    moved = logs(gated, "--rank", 1, "--around", "fault-1")
    assert moved.returncode == 0, moved.stderr
    lost, _, newcomer = moved.stdout.partition("n2.")
    assert "/n1.0.log" in lost and "rank 1 is in step 3" in lost and "step 6" not in lost
    assert "fault-1] this process is rank 1 from here on" in newcomer and "rank 1 is in step 6" in newcomer
    survivor = logs(gated, "--rank", 0, "--around", "fault-1")
    assert "fault-1] the generation ends here" in survivor.stdout and survivor.stdout.count("== ") == 1
    assert logs(gated, "--rank", 0, "--around", "fault-7").returncode == 2

    lines = [json.loads(line) for line in gated.trial.console().splitlines() if line.startswith("{")]
    fault = next(each for each in lines if each.get("what") == "fault" and each["process"] == "coordinator")
    assert fault["cause"] == "fault-1" and fault["text"].startswith("FAULT: ")
    said = {each["text"]: each for each in lines if each["process"] == "trainer"}
    assert said["rank 1 is in step 3"]["cause"] == "start" and said["rank 1 is in step 3"]["node"] == "n1"
    assert said["rank 1 is in step 6"]["cause"] == "fault-1" and said["rank 1 is in step 6"]["trainer"].startswith(
        "n2."
    )
    of_agents = [each for each in lines if each["process"] == "agent" and each.get("cause") == "fault-1"]
    assert {"unwound", "resumed"} <= {each["what"] for each in of_agents}
    told = wait_until(lambda: read_if_there(tmp_path / "told"), "what the hook was told")
    assert json.loads(told)["cause"] == "fault-1"


def read_if_there(path: Path) -> str:
    return path.read_text() if path.exists() else ""
