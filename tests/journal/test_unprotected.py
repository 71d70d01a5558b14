"""The journal of an unprotected job is written when a step ends, and has the same errors."""

from __future__ import annotations

import json

import pytest

from deadpool.errors import ConfigError
from deadpool.journal import Jsonl, step_values
from deadpool.journal.step_values import UnprotectedJournal
from deadpool.trainer.unprotected import UnprotectedShares, UnprotectedStep


def steps(path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def do(journal, number, **values):
    with UnprotectedStep(number, journal, UnprotectedShares(0, {})) as step:
        journal.log(int(step), values)


def test_written_at_the_end_of_each_step(tmp_path):
    journal = UnprotectedJournal(0)
    journal.log_to([Jsonl(tmp_path / "a.jsonl")])
    for number in range(3):
        do(journal, number, loss=1.0)
        assert steps(tmp_path / "a.jsonl") == list(range(number + 1))
    with pytest.raises(ConfigError, match="outside of a step"):
        journal.log(3, {})
    journal.close()


def test_step_that_raises_is_not_written(tmp_path):
    journal = UnprotectedJournal(0)
    journal.log_to([Jsonl(tmp_path / "a.jsonl")])
    with pytest.raises(ZeroDivisionError), UnprotectedStep(0, journal, UnprotectedShares(0, {})):
        journal.log(0, {"loss": 1.0})
        raise ZeroDivisionError
    journal.close()
    assert steps(tmp_path / "a.jsonl") == []


def test_sink_that_fails_stops_no_step_and_gets_the_rest_later(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(step_values, "_FIRST_PAUSE_S", 0.0)
    (tmp_path / "folder").write_text("in the way")
    journal = UnprotectedJournal(3)
    journal.log_to([Jsonl(tmp_path / "folder" / "a.jsonl")])
    do(journal, 0, loss=1.0)
    do(journal, 1, loss=1.0)
    assert capsys.readouterr().err.count("the journal cannot be written to Jsonl(") == 1
    (tmp_path / "folder").unlink()
    do(journal, 2, loss=1.0)
    journal.close()
    assert steps(tmp_path / "folder" / "a.jsonl") == [0, 1, 2]


def test_default_is_the_folder_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DEADPOOL_JOURNAL", str(tmp_path / "journal"))
    journal = UnprotectedJournal(7)
    do(journal, 0, loss=1.0)
    journal.close()
    path = tmp_path / "journal" / "rank-00007.jsonl"
    assert steps(path) == [0] and path.stat().st_mode & 0o777 == 0o600
