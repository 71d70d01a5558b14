"""The user's script has a bug: the job ends, says why, and does not hang or try for ever."""

from __future__ import annotations

import pytest

from deadpool.errors import JobFailed


def test_script_raises_before_its_first_step(make_stage):
    stage = make_stage(scene="raise@-1:1", spares=0)
    with pytest.raises(JobFailed, match="code 1"):
        stage.trial.run()
    reason = stage.events("failed")[0]["reason"]
    assert "rank 1" in reason and "RuntimeError: a bug of the user's" in reason


def test_script_raises_in_mid_training_each_time(make_stage):
    stage = make_stage("plain", scene="raise@4:1", spares=0)
    with pytest.raises(JobFailed, match="code 1"):
        stage.trial.run()
    reason = stage.events("failed")[0]["reason"]
    assert "RuntimeError: a bug of the user's in step 4" in reason
