"""The examples as a user runs them: under torchrun, and unchanged under DeadPool, where a node dies half-way."""

from __future__ import annotations

import importlib.util

import pytest
from example_runs import EXAMPLES, ExampleJob, said
from torchrun import torchrun

pytestmark = pytest.mark.thorough

STEPS = 40
LOST_AT = 13
LOSE_RANK_0 = ("train_fabric.py", "train_nanogpt.py")  # it has something that the other ranks have not


def run_with_a_loss(folder, fork_server, rank, *script):
    """Its node dies in a step by an order: a job of short steps could be over before a test has looked."""
    example = ExampleJob(folder, fork_server, *script, faults=(f"at=forward step={LOST_AT} node=n{rank}",))
    printed = example.run()
    assert [event["ranks"] for event in example.events("fault")] == [[rank]]
    return printed


@pytest.mark.parametrize(
    "script",
    [
        "train_nano.py",
        "train_hf.py --model llama",
        "train_3d.py --tp 2",
        "train_3d.py --dp 2",
        "train_3d.py --pp 2",
        "train_muon.py --width 16 --layers 1 --context 16 --batch 2",
        "train_fabric.py",
        "train_nanogpt.py --data DATA",
        "train_nanogpt.py --data DATA --dtype float16 --width 16 --layers 1 --context 8 --batch 2",
    ],
)
def test_example_survives_the_loss_of_a_node(tmp_path, fork_server, script):
    name, *arguments = script.replace("DATA", str(tmp_path / "data")).split()
    if name == "train_fabric.py" and importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    command = (str(EXAMPLES / name), "--steps", str(STEPS), *arguments)
    undisturbed = said(torchrun(2, tmp_path, *command))
    assert set(undisturbed) == {f"step {step}" for step in range(STEPS)} | {"rank 0", "rank 1"}
    assert len({text for step, text in undisturbed.items() if "step" in step}) == STEPS, "nothing was trained"
    lost = 0 if name in LOSE_RANK_0 else 1
    assert run_with_a_loss(tmp_path / "run", fork_server, lost, *command) == undisturbed


def loss_of(text):
    return float(text.split()[1])


def test_layouts_of_the_3d_example_are_interchangeable(tmp_path):
    script = (str(EXAMPLES / "train_3d.py"), "--steps", "5")
    alone, pipelined, split = (
        said(torchrun(size, tmp_path, *script, *layout))
        for size, layout in ((1, ()), (2, ("--pp", "2", "--schedule", "interleaved")), (2, ("--tp", "2")))
    )
    for step in (f"step {number}" for number in range(5)):
        expected = pytest.approx(loss_of(alone[step]), rel=1e-5)
        assert loss_of(pipelined[step]) == expected
        assert loss_of(split[step]) == expected
