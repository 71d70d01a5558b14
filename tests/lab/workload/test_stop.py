"""A run of the workload ends at the step that a file names."""

from __future__ import annotations

from deadpool_lab.workload.train import is_over


def test_goes_on_until_the_step_that_the_file_names(tmp_path):
    stop = tmp_path / "stop"
    assert not is_over(stop, 5)
    stop.write_text("")  # not written yet
    assert not is_over(stop, 5)
    stop.write_text("7")
    assert not is_over(stop, 6)
    assert is_over(stop, 7)
