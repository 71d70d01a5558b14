"""`deadpool demo` from its first line to its last, as the first thing that somebody tries."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command import deadpool
from strange_torch import STRANGE

STEPS = 6
NEVER_STARTS = {"refuse_stores", "lose_types_of_backends", "lose_sharded_tensors"}
NOTHING_MISSING = "have_another_number"


def figures_of_a_demo(folder: Path) -> dict[str, object]:
    figures = folder / "figures.json"
    done = deadpool("demo", "--steps", STEPS, "--out", figures)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(figures.read_text())


def test_survivors_keep_their_processes_and_nothing_is_lost(tmp_path):
    """One survivor may stand in a message that the kill has cut off in its middle, which gloo does not end (design
    notes): it is replaced too, and everything is as exact."""
    figures = figures_of_a_demo(tmp_path)
    assert (figures["bit_identical"], figures["steps"]) == (True, STEPS)
    assert figures["survivors_kept"] == 3 - figures["survivors_hung"]


def under_a_strange_torch(strange: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Every process of the job meets that torch (tests/strange_torch.py)."""
    (tmp_path / "sitecustomize.py").write_text("import strange_torch\n")
    path = [str(tmp_path), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("STRANGE_TORCH", strange)
    return figures_of_a_demo(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("strange", sorted({*STRANGE} - NEVER_STARTS - {NOTHING_MISSING}))
def test_torch_that_lacks_something_makes_it_slower_and_no_less_exact(strange, tmp_path, monkeypatch):
    """None can rehearse."""
    figures = under_a_strange_torch(strange, tmp_path, monkeypatch)
    assert (figures["bit_identical"], figures["survivors_kept"], figures["steps"]) == (True, 0, STEPS)


@pytest.mark.thorough
def test_torch_that_nobody_has_tried_and_that_has_everything_is_as_exact(tmp_path, monkeypatch):
    """Fresh processes take the ranks, since not every difference shows in a self-test."""
    figures = under_a_strange_torch(NOTHING_MISSING, tmp_path, monkeypatch)
    assert (figures["bit_identical"], figures["survivors_kept"], figures["steps"]) == (True, 0, STEPS)
