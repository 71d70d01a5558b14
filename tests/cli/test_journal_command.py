"""`deadpool show journal`: the files of several nodes and jobs as one curve."""

from __future__ import annotations

import json
import subprocess
import sys

from waiting import LIMIT_S

from deadpool.journal import Entry, Jsonl, Run
from deadpool.journal.jsonl import JournalReader, newest_runs


def write(folder, run: Run, *steps: int, begin: float = 0.0) -> None:
    sink = Jsonl(folder / f"rank-{run.rank:05d}.jsonl")
    sink.open(run)
    sink.write([Entry(step, begin + step, json.dumps({"loss": step / 2, "a": {"b": step}})) for step in steps])
    sink.close()


def printed(*arguments: object) -> list[dict]:
    command = [sys.executable, "-m", "deadpool.cli.main", "show", "journal", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_folders_of_two_nodes_are_one_journal(tmp_path):
    write(tmp_path / "n1" / "journal", Run("a", 0), 0, 1, 2)
    write(tmp_path / "n2" / "journal", Run("a", 0), 2, 3)
    write(tmp_path / "n1" / "journal", Run("b", 1), 0, 1)
    found = printed("--folder", tmp_path / "n1", "--folder", tmp_path / "n2" / "journal")
    assert [(line["step"], line["rank"]) for line in found] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0)]
    assert printed(tmp_path / "n1", "--rank", 1, "--key", "a/b")[1] == {
        "step": 1,
        "rank": 1,
        "time": 1.0,
        "values": {"a/b": 1},
    }


def test_the_run_folder_and_its_newest_job(tmp_path):
    write(tmp_path / "journal", Run("old", 0), 0, 1, 2)
    write(tmp_path / "journal", Run("new", 0), 0, 1, begin=100.0)
    found = printed(tmp_path)
    assert [(line["step"], line["time"]) for line in found] == [(0, 100.0), (1, 101.0)]


def test_folder_that_is_not_there(tmp_path):
    command = [sys.executable, "-m", "deadpool.cli.main", "show", "journal", "--folder", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2 and "does not exist" in done.stderr


def test_what_comes_later_is_read_once_and_torn_lines_wait(tmp_path):
    write(tmp_path, Run("a", 0), 0)
    journal = JournalReader([tmp_path])
    assert [line.step for line in journal.read()] == [0]
    path = tmp_path / "rank-00000.jsonl"
    whole = path.read_text().replace('"step":0', '"step":1')
    path.write_text(path.read_text() + whole[:20])
    assert journal.read() == []
    path.write_text(path.read_text() + whole[20:] + "somebody else's line\n")
    assert [line.step for line in journal.read()] == [1]
    assert newest_runs([]) == []


def test_follow(tmp_path):
    write(tmp_path, Run("a", 0), 0)
    command = [sys.executable, "-m", "deadpool.cli.main", "show", "journal", "--folder", str(tmp_path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["step"] == 0
        write(tmp_path, Run("a", 0), 1)
        assert json.loads(process.stdout.readline())["step"] == 1
        process.kill()
