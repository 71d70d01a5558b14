"""A command about a job says what is wrong with the folder that it was given, and does not exit with 0."""

from __future__ import annotations

import pytest
from command import deadpool

from deadpool.cli.job_client import find_run_dir
from deadpool.errors import ConfigError


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"run_dir=.*nowhere is not there: give the run folder of a job"):
        find_run_dir(tmp_path / "nowhere")


def test_file_and_folder_of_something_else(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"run_dir=.*file is a file"):
        find_run_dir(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"is no run folder of a job: it has neither job\.json nor events\.jsonl"):
        find_run_dir(tmp_path)


@pytest.mark.parametrize("name", ["job.json", "events.jsonl"])
def test_folder_of_a_job_that_runs_or_has_ended(tmp_path, name):
    (tmp_path / name).touch()
    assert find_run_dir(tmp_path).path == tmp_path


def test_story_of_a_folder_that_is_not_there(tmp_path):
    done = deadpool("story", "--run-dir", tmp_path / "nowhere")
    assert done.returncode == 2
    assert "nowhere is not there" in done.stderr and "Traceback" not in done.stderr
