"""The user's script has a bug: the job ends, says why, and does not hang or try for ever."""

from __future__ import annotations

import pytest

from deadpool.errors import JobFailed


def test_script_raises_before_its_first_step(make_gated_job):
    gated = make_gated_job(acts="raise@-1:1", spares=0)
    with pytest.raises(JobFailed, match="code 1"):
        gated.trial.run()
    reason = gated.events("failed")[0]["reason"]
    assert "rank 1" in reason and "RuntimeError: a bug of the user's" in reason


def test_script_raises_in_mid_training_each_time(make_gated_job):
    gated = make_gated_job("plain", acts="raise@4:1", spares=0)
    with pytest.raises(JobFailed, match="code 1"):
        gated.trial.run()
    reason = gated.events("failed")[0]["reason"]
    assert "RuntimeError: a bug of the user's in step 4" in reason
