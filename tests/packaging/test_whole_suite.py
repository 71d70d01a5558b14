"""`scripts/whole-suite`: what it runs, what it records, and that its bound holds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import whole_suite  # noqa: E402

TESTS = """
import time, pytest

def test_good(): pass
def test_bad(): assert False
def test_skipped(): pytest.skip("no reason")

@pytest.fixture
def ends_badly():
    yield
    raise RuntimeError

def test_bad_at_its_end(ends_badly): assert False
def test_long(): time.sleep({sleep_s})
"""


def play(folder: Path, limit_s: float, sleep_s: float) -> tuple[int | None, dict[str, int]]:
    file, report = folder / "test_some.py", folder / "report.xml"
    file.write_text(TESTS.format(sleep_s=sleep_s))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", f"--rootdir={folder}"]
    code = whole_suite.run_bounded([*command, str(file)], limit_s)
    return code, dict(whole_suite.outcomes(report))


def test_each_test_counts_once(tmp_path):
    assert play(tmp_path, limit_s=300, sleep_s=0) == (1, {"passed": 2, "failed": 2, "skipped": 1})


def test_what_was_done_before_the_limit_is_counted(tmp_path):
    began = time.monotonic()
    code, counted = play(tmp_path, limit_s=20, sleep_s=6000)
    assert code is None and time.monotonic() - began < 600
    assert not counted or counted["failed"] == 2  # a busy machine may not come that far


def test_every_file_is_in_one_part():
    whole = whole_suite.Part().files()
    parts = [whole_suite.Part(number, 3).files() for number in (1, 2, 3)]
    assert sorted(file for part in parts for file in part) == whole and all(parts)
    assert "tests/packaging/test_whole_suite.py" in whole


@pytest.mark.parametrize("words", [["--part", "0/3"], ["--part", "4/3"], ["--part", "3"], ["--limit-minutes", "0"]])
def test_what_it_does_not_know_is_refused(words):
    command = [sys.executable, str(ROOT / "scripts" / "whole_suite.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and f"argument {words[0]}" in done.stderr


def test_a_line_says_what_came_out():
    counted = whole_suite.Counter(passed=3, failed=1)
    cells = whole_suite.line(whole_suite.Part(2, 8), 1, counted, 600.0).split(" | ")
    assert cells[4:] == ["2 of 8", "FAILED", "3", "1", "0", "10 |\n"]
    assert "cut off by the limit" in whole_suite.line(whole_suite.Part(), None, counted, 1.0)
    header = next(each for each in whole_suite.RECORD.read_text().splitlines() if each.startswith("| tree"))
    assert len(cells) == len(header.split(" | "))
