"""A command about a job says what is wrong with the folder that it was given, and does not exit with 0."""

from __future__ import annotations

import pytest
from command import deadpool

from deadpool.cli.job_client import find_run_dir
from deadpool.errors import ConfigError


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"run_dir=.*nowhere is not there: give the run folder of a job"):
        find_run_dir(tmp_path / "nowhere")


def test_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"run_dir=.*file is a file"):
        find_run_dir(tmp_path / "file")


@pytest.mark.parametrize(("name", "said"), [("nowhere", "nowhere is not there"), (".", "has no events.jsonl")])
def test_story_of_no_job(tmp_path, name, said):
    done = deadpool("story", "--run-dir", tmp_path / name)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
