"""A short trial: each kind of error once, all in one job, which ends as without them."""

from __future__ import annotations

import time

import pytest

from deadpool.cli.job_client import ask
from deadpool.config.orders import FLIPS
from deadpool_lab.corruption.error_trial import ErrorTrial
from deadpool_lab.corruption.plan import SHAPES, draw


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["fsdp2", "ddp", "tp"])
def test_each_kind_of_error_is_found(tmp_path, layout):
    shape = SHAPES[layout]
    trial = ErrorTrial(shape, draw(shape, len(FLIPS), 1), tmp_path, time.monotonic() + 600.0, ask, lambda outcome: None)
    trial.run()
    assert trial.problems == []
    assert {each.error.flips for each in trial.outcomes} == set(FLIPS)
    assert [each.record() for each in trial.outcomes if not (each.is_detected and each.is_named_rightly)] == []
