"""The examples as a user runs them: under torchrun, and unchanged under DeadPool, where a node dies half-way."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from torchrun import torchrun

from deadpool.config import JobConfig
from deadpool.control.fork_client import SharedForkServer
from deadpool.control.launcher import LocalJob, running
from deadpool.control.run_dir import RunDir
from deadpool.events import read_events

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 40
KILL_AFTER = 12


def said(text: str) -> dict[str, str]:
    """The loss of each step (of one done again the last) and the final state of each rank.

    Wherever in a line: under torchrun the ranks write into the same pipe, and a line may come before another one's end.
    """
    losses = re.findall(r"(step \d+) loss ([\d.]+)", text)
    states = re.findall(r"(rank \d+) ends with state ([0-9a-f]{32})", text)
    return dict(losses) | dict(states)


def run_with_a_loss(folder: Path, fork_server: SharedForkServer, *script: str) -> dict[str, str]:
    job = LocalJob(
        JobConfig(nodes=2, spares=1, overhead_budget=0.0).checked(),
        RunDir.create(folder),
        [*script],
        quiet=True,
        fork_server=fork_server,
    )

    def logged() -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(job.run_dir.logs.iterdir()))

    with running(job):
        deadline = time.monotonic() + 60
        while f"step {KILL_AFTER} " not in logged():
            assert time.monotonic() < deadline and job.coordinator.poll() is None, logged()
            time.sleep(0.02)
        job.kill_node("n1")
        assert job.wait(90) == 0, logged()
    assert [event["ranks"] for event in read_events(job.run_dir.events) if event["what"] == "fault"] == [[1]]
    return said(logged())


@pytest.mark.parametrize(
    "script",
    [
        "train_nano.py",
        "train_hf.py --model llama",
        "train_3d.py --tp 2",
        "train_3d.py --dp 2",
        "train_3d.py --pp 2",
    ],
)
def test_example_survives_the_loss_of_a_node(tmp_path, fork_server, script):
    name, *arguments = script.split()
    command = (str(EXAMPLES / name), "--steps", str(STEPS), *arguments)
    undisturbed = said(torchrun(2, tmp_path, *command))
    assert set(undisturbed) == {f"step {step}" for step in range(STEPS)} | {"rank 0", "rank 1"}
    assert len(set(undisturbed.values())) == len(undisturbed), "nothing was trained"
    assert run_with_a_loss(tmp_path / "run", fork_server, *command) == undisturbed


def test_layouts_of_the_3d_example_are_interchangeable(tmp_path):
    script = (str(EXAMPLES / "train_3d.py"), "--steps", "5")
    alone, pipelined, split = (
        said(torchrun(size, tmp_path, *script, *layout))
        for size, layout in ((1, ()), (2, ("--pp", "2", "--schedule", "interleaved")), (2, ("--tp", "2")))
    )
    for step in (f"step {number}" for number in range(5)):
        assert float(pipelined[step]) == pytest.approx(float(alone[step]), rel=1e-5)
        assert float(split[step]) == pytest.approx(float(alone[step]), rel=1e-5)
