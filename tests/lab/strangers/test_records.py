"""What is the same and what is not: a judge that overlooks a bit judges nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deadpool_lab.strangers.records import RankRecord, differences, final_twice, recomputed_differently


def record(folder: Path, name: str, *lines: object) -> RankRecord:
    path = folder / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return RankRecord.read(path)


def step(number: int, **changed: object) -> dict[str, object]:
    return {"step": number, "loss": "0x1p+0", "draws": ["0.5"], "batch": "abc", **changed}


END = {"digest": "f00"}


def test_equal(tmp_path):
    one = record(tmp_path, "one", step(0), step(1), END)
    other = record(tmp_path, "other", step(0), step(0), step(1), END)
    assert differences([one], [other]) == []
    assert recomputed_differently([other]) == []


@pytest.mark.parametrize("changed", [{"loss": "0x1.8p+0"}, {"draws": ["0.25"]}, {"batch": "abd"}])
def test_a_step_that_differs(tmp_path, changed):
    one = record(tmp_path, "one", step(0), step(1), END)
    other = record(tmp_path, "other", step(0), step(1, **changed), END)
    (problem,) = differences([one], [other])
    assert problem.startswith(f"rank 0: {next(iter(changed))} of step 1 differs")


def test_a_step_that_is_missing(tmp_path):
    one, other = record(tmp_path, "one", step(0), step(1), END), record(tmp_path, "other", step(0), END)
    assert len(differences([one], [other])) == 3


def test_another_final_state(tmp_path):
    one, other = record(tmp_path, "one", step(0), END), record(tmp_path, "other", step(0), {"digest": "f01"})
    assert differences([one], [other]) == ["rank 0: final state differs: f00 and f01"]


def test_no_final_state_at_all(tmp_path):
    one = record(tmp_path, "one", step(0))
    assert differences([one], [one]) == ["rank 0: final state differs: None and None"]


def test_a_step_done_again_with_another_result(tmp_path):
    again = record(tmp_path, "again", step(0), step(0, loss="0x0p+0"), step(0), END)
    assert recomputed_differently([again]) == ["rank 0: step 0 was computed 3 times, with different results"]


def test_an_evaluation_that_differs_counts_where_both_have_it(tmp_path):
    one = record(tmp_path, "one", step(0), {"evaluated": 0, "score": "a"}, {"evaluated": 2, "score": "b"}, END)
    other = record(tmp_path, "other", step(0), {"evaluated": 2, "score": "c"}, END)
    assert differences([one], [other]) == ["rank 0: evaluation after step 2 differs"]


def test_final_twice(tmp_path):
    one = record(tmp_path, "one", step(0), {"final": 0}, {"final": 0}, END)
    assert final_twice([one]) == ["rank 0: step 0 became final 2 times"]


def test_a_line_that_a_kill_cut_short_does_not_count(tmp_path):
    cut = record(tmp_path, "cut", step(0), '{"step": 1, "loss": "0x1', END)
    assert list(cut.steps) == [0]
