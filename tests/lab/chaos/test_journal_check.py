"""A hit job's journal that is not what its ranks computed is a problem."""

from __future__ import annotations

import json

import pytest

from deadpool.demo.trial import Results
from deadpool_lab.chaos.checks import journal_problems

LOSSES = {step: (1.0 / (step + 1)).hex() for step in range(4)}


def problems(folder, *steps: int, shift: float = 0.0) -> list[str]:
    lines = [{"step": step, "values": {"loss": 1.0 / (step + 1) + shift}} for step in steps]
    (folder / "rank-00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return journal_problems(folder, Results(losses={0: LOSSES}, steps={}, digests={}))


def test_every_step_once_with_its_loss(tmp_path):
    assert problems(tmp_path, 0, 1, 2, 3) == []


@pytest.mark.parametrize("steps", [(0, 1, 3), (0, 1, 2), (0, 1, 2, 2, 3), (0, 2, 1, 3), ()])
def test_gaps_repeats_and_another_order(tmp_path, steps):
    assert len(problems(tmp_path, *steps)) == 1


def test_other_losses(tmp_path):
    (problem,) = problems(tmp_path, 0, 1, 2, 3, shift=1e-9)
    assert "losses differ at steps [0, 1, 2, 3]" in problem


def test_no_journal_at_all(tmp_path):
    (problem,) = journal_problems(tmp_path, Results(losses={0: LOSSES}, steps={}, digests={}))
    assert "steps [0, 1, 2, 3] are missing" in problem
