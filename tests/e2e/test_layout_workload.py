"""The workload itself, undisturbed: every layout trains the same model, and does it bit for bit alike each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gated_job import STEPS, workload
from torchrun import torchrun

from deadpool.config.job_config import JobConfig
from deadpool.demo.gpt import Size
from deadpool.demo.trial import Results, differences
from deadpool.errors import ConfigError
from deadpool_lab.workload import layouts
from deadpool_lab.workload.layouts.assembly import LayoutOptions
from deadpool_lab.workload.run import SCRIPT, WorkloadTrial

EVERYTHING = ["--ema", "0.9", "--checkpoint", "--optimizer", "foreach", "--loader", "stateful"]
NOT_HERE = {"3d": "needs 8 ranks", "cp": "torch cannot run it on the CPU"}


def run_unprotected(layout: str, folder: Path) -> Results:
    folder.mkdir()
    torchrun(2, folder, str(SCRIPT), "--out", str(folder / "out"), *workload(layout, *EVERYTHING))
    return Results.read(folder / "out")


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["ddp-unused", "tp-sp", "pp-interleaved"])
def test_same_bits_each_time_and_under_deadpool(tmp_path, layout):
    first = run_unprotected(layout, tmp_path / "first")
    again = run_unprotected(layout, tmp_path / "again")
    trial = WorkloadTrial(
        JobConfig(nodes=2, overhead_budget=0.0), workload(layout, *EVERYTHING), tmp_path / "protected"
    )
    assert differences(first, again) == []
    assert differences(first, trial.run()) == []
    assert len(set(first.losses[1].values())) == STEPS, "nothing was trained"


@pytest.mark.thorough
def test_every_layout_trains_the_same_model(tmp_path):
    names = [name for name in layouts.NAMES if name not in NOT_HERE]
    printed = torchrun(4, tmp_path, str(Path(__file__).with_name("first_steps.py")), *names)
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [each["layout"] for each in found] == names
    for each in found:
        _require_same_model(**each)


def _require_same_model(layout, seen, losses, norm):
    tolerance = 2e-2 if layout == "fsdp2-bf16" else 1e-4
    for data_rank, loss, its_norm, own_norm in seen:
        assert its_norm == pytest.approx(norm, rel=tolerance), layout
        assert loss == pytest.approx(losses[data_rank], rel=tolerance) or (loss == 0.0 and layout.startswith("pp"))
        assert not layout.startswith("pp") or own_norm < 0.99 * norm, "a stage alone has not the whole norm"
    assert any(loss for _, loss, _, _ in seen)


def test_layout_that_cannot_run_here_says_why(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    options = LayoutOptions(size=Size())
    with pytest.raises(ConfigError, match=r"layout='cp' cannot be run on the CPU: torch's context_parallel"):
        layouts.build("cp", options)
    with pytest.raises(ConfigError, match="layout='cp' is not supported yet"):
        layouts.build("cp", LayoutOptions(size=Size(), device=torch.device("cuda")))
    with pytest.raises(ConfigError, match="optimizer='capturable' cannot be used on the CPU"):
        LayoutOptions(size=Size(), optimizer="capturable").optimizer_arguments()
    with pytest.raises(ConfigError, match="3d needs 8 ranks, got 4"):
        layouts.build("3d", options)
