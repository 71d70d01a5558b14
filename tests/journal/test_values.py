"""Which values may be logged, where and when, and the errors otherwise."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from deadpool.errors import ConfigError
from deadpool.journal.entry import STEP_BYTES, StepDraft, numbers_of
from deadpool.journal.step_values import StepValues, finished, ranges


def logged(**values):
    draft = StepDraft(3)
    draft.add(values)
    entry = draft.entry(1.5)
    assert entry is not None and (entry.step, entry.time) == (3, 1.5)
    return entry.values


def test_values_of_every_kind_come_back():
    values = {
        "none": None,
        "yes": True,
        "int": 2**70,
        "text": 'ä\n"\ud800',
        "list": [1, [2.5]],
        "dict": {"a": {"b": 1}},
    }
    assert logged(**values) == values


def test_numpy_scalars_and_tensors_of_one_element_are_numbers():
    found = logged(a=np.float32(0.1), b=np.int64(7), c=torch.tensor([[0.3]]), d=np.bool_(True), e=np.array([2.0]))
    assert found == {"a": float(np.float32(0.1)), "b": 7, "c": torch.tensor(0.3).item(), "d": True, "e": 2.0}
    assert type(found["d"]) is bool and type(found["b"]) is int


def test_floats_are_exact_and_nan_and_infinity_survive():
    found = logged(tiny=5e-324, third=1 / 3, nan=float("nan"), top=float("inf"), low=-float("inf"), zero=-0.0)
    assert found["tiny"] == 5e-324 and found["third"].hex() == (1 / 3).hex()
    assert math.isnan(found["nan"]) and found["top"] == math.inf and found["low"] == -math.inf
    assert math.copysign(1.0, found["zero"]) == -1.0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.zeros(3), "'bad' has 3 elements"),
        (np.zeros((2, 2)), "'bad' has 4 elements"),
        (object(), "'bad' is a object"),
        (b"bytes", "'bad' is a bytes"),
        (1j, "'bad' is a complex"),
        (np.complex64(1), "'bad' holds a complex"),
        (np.datetime64("2026-01-01"), "'bad' holds a date"),
        ({1: 2}, "'bad' has the key 1"),
        ([1, {"x": [object()]}], r"""bad\[1\]\['x'\]\[0\].* is a object"""),
    ],
)
def test_other_values_are_refused_by_name(value, says):
    with pytest.raises(ConfigError, match=says):
        logged(fine=1, bad=value)


def test_value_that_contains_itself_is_refused():
    value: list = []
    value.append(value)
    with pytest.raises(ConfigError, match="contains itself"):
        logged(loop=value)


def test_too_much_in_one_step_is_refused_and_nothing_of_the_call_counts():
    draft = StepDraft(9)
    draft.add({"a": 1})
    with pytest.raises(ConfigError, match=f"'long' brings the values of step 9 to .* the limit is {STEP_BYTES} bytes"):
        draft.add({"b": 2, "long": "x" * STEP_BYTES})
    entry = draft.entry(0.0)
    assert entry is not None and entry.values == {"a": 1}


def test_size_is_of_what_is_kept():
    draft = StepDraft(0)
    for _ in range(10):
        draft.add({"same": "x" * (STEP_BYTES // 2)})
    entry = draft.entry(0.0)
    assert entry is not None and len(entry.text) < STEP_BYTES


def test_later_value_of_a_key_wins_and_calls_merge():
    draft = StepDraft(0)
    draft.add({"a": 1, "b": 1})
    draft.add({"b": 2, "c": 3})
    entry = draft.entry(0.0)
    assert entry is not None and entry.text == json.dumps({"a": 1, "b": 2, "c": 3}, separators=(",", ":"))


def test_step_without_values_has_no_entry():
    assert StepDraft(0).entry(0.0) is None


def test_log_outside_of_a_step_and_for_another_step():
    book = StepValues()
    with pytest.raises(ConfigError, match=r"job.log\(4, ...\) was called outside of a step: call it inside the block"):
        book.log(4, {"a": 1})
    book.enter_step(4)
    with pytest.raises(ConfigError, match=r"job.log\(5, ...\) was called in step 4"):
        book.log(5, {"a": 1})
    book.log(4, {"a": 1})
    assert finished(book.leave_step()).values == {"a": 1}
    with pytest.raises(ConfigError, match="outside of a step"):
        book.log(4, {"a": 1})


def test_step_that_is_done_again_begins_with_nothing():
    book = StepValues()
    book.enter_step(4)
    book.log(4, {"a": 1})
    book.enter_step(4)
    assert finished(book.leave_step()) is None


def test_sinks_are_named_before_the_loop():
    book = StepValues()
    with pytest.raises(ConfigError, match="a sink needs the methods open, write, close"):
        book.log_to(["loss.jsonl"])
    book.enter_step(0)
    with pytest.raises(ConfigError, match="before the loop"):
        book.log_to([])


def test_numbers_of_nested_values():
    values = {"a": 1, "b": {"c": 2.5, "d": {"e": True}}, "text": "no", "list": [1], "none": None}
    assert dict(numbers_of(values)) == {"a": 1.0, "b/c": 2.5, "b/d/e": 1.0}


def test_ranges():
    assert ranges([7, 3, 4, 5, 9]) == "3-5, 7, 9"


def test_which_values_may_be_times():
    draft = StepDraft(1)
    draft.add({"loss": 0.5, "step_s": 0.1, "count": 3, "norm": torch.tensor(1.0)})
    draft.add({"train": {"loss": 0.5, "lr": 0.1}, "phases": [1.5], "name": "a"})
    assert [key for key, _, may_be_time in draft.values() if may_be_time] == ["step_s", "train", "phases"]
    draft.add({"step_s": 1})
    assert [key for key, _, may_be_time in draft.values() if may_be_time] == ["train", "phases"]
