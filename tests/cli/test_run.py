"""`deadpool run`: how it ends, and that nothing outlives it."""

from __future__ import annotations

import json
import signal

import pytest
from command import WAITING_SCRIPT, alive, deadpool, started
from waiting import LIMIT_S, wait_until


def write_script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_script_that_ends_well(tmp_path):
    script = write_script(tmp_path, "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    done = deadpool("run", "--run-dir", tmp_path / "run", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[n0 r0] rank 0 of 1" in done.stdout
    announced = done.stdout.count("silence after which a node is taken for dead")
    assert announced == 1, "the job is announced once"


def test_script_that_raises(tmp_path):
    script = write_script(tmp_path, "raise ValueError('no such dataset')")
    done = deadpool("run", "--run-dir", tmp_path / "run", script)
    assert done.returncode == 1
    assert "ValueError: no such dataset" in done.stdout
    assert "FAILED: rank 0 failed before its first snapshot" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0", WAITING_SCRIPT], "nodes=0 cannot be used: give a number of at least 1"),
        (["--nodes", "2", "--holders", "2", WAITING_SCRIPT], "holders=2 cannot be used"),
        (["--topology", "absent.toml", WAITING_SCRIPT], "topology file absent.toml cannot be read"),
        (["absent.py"], "script='absent.py' is not a file"),
        (["/dev/stdin"], "script='/dev/stdin' is no regular file"),
        (["/dev/null"], "script='/dev/null' is no regular file"),
        (["--nodez", "4", WAITING_SCRIPT], "there is no option --nodez"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(tmp_path, arguments, message):
    done = deadpool("run", "--run-dir", tmp_path / "run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_empty_script_is_refused(tmp_path):
    (tmp_path / "empty.py").touch()
    done = deadpool("run", "--run-dir", tmp_path / "run", tmp_path / "empty.py")
    assert (done.returncode, "empty.py' is empty: give the path" in done.stderr) == (2, True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sig", "code"),
    [(signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_ended_from_outside(tmp_path, sig, code):
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    with started("run", "--run-dir", tmp_path / "run", WAITING_SCRIPT, ranks, output=tmp_path / "out") as process:
        wait_until(lambda: any(ranks.iterdir()), "the script")
        process.send_signal(sig)
        assert process.wait(LIMIT_S) == code
        wait_until(lambda: not alive(), "the end of every process")


def running_status(run_dir):
    status = json.loads(deadpool("status", run_dir, "--json").stdout)
    return status if status["phase"] == "running" else None


def test_status_kill_and_interrupt(tmp_path):
    """One job, asked for its status, hit by `deadpool node kill`, asked for its story, ended by Ctrl-C."""
    ranks, run_dir = tmp_path / "ranks", tmp_path / "run"
    ranks.mkdir()
    job = ["run", "--run-dir", run_dir, "--nodes", 2, WAITING_SCRIPT, ranks]
    with started(*job, output=tmp_path / "out") as process:
        wait_until(lambda: len(list(ranks.iterdir())) == 2, "both ranks")
        status = wait_until(lambda: running_status(run_dir), "a job that runs")
        assert [node["ranks"] for node in status["nodes"]] in ([[0], [1]], [[1], [0]])
        assert "running" in deadpool("status", run_dir).stdout

        hit = deadpool("node", "kill", run_dir, "--rank", 1, "--json")
        assert json.loads(hit.stdout) == {"node": "n1", "rank": 1}
        wait_until(lambda: len(list(ranks.iterdir())) == 4, "a new start of both ranks")
        (recovery,) = wait_until(lambda: json.loads(deadpool("show", "story", run_dir, "--json").stdout), "the story")
        assert recovery["cause"] == "fault-1" and "killed by SIGKILL" in recovery["reason"]
        assert "fault-1" in deadpool("show", "story", run_dir).stdout

        assert deadpool("node", "kill", run_dir).returncode == 2
        refused = deadpool("node", "kill", run_dir, "--node", "n7")
        assert refused.returncode == 2 and "there is no node 'n7'" in refused.stderr

        refused = deadpool("node", "kill", run_dir, "--rank", 2)
        assert refused.returncode == 2 and "there is no rank 2: give 0 to 1" in refused.stderr

        at = ["--node", "n0", "--at", "backward", "--step", 7]
        told = deadpool("node", "kill", run_dir, *at).stdout
        assert "SIGKILL is ordered for node n0: in the backward pass of step 7" in told
        waiting = json.loads(deadpool("node", "kill", run_dir, *at, "--json").stdout)
        assert waiting == {"node": "n0", "rank": None, "at": "backward", "step": 7}

        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        wait_until(lambda: not alive(), "the end of every process")
    gone = deadpool("status", run_dir)
    assert gone.returncode == 2 and "has ended, or its machine cannot be reached" in gone.stderr
