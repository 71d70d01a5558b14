"""What `scripts/frameworks` remembers of its cells: what has passed is not run again, the rest is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
CELLS = """
import pathlib
import pytest

def differences(one, other):
    return [] if one == other else ["differs"]

@pytest.mark.parametrize("cell", ["a b", "c"])
def test_bit_identical(cell):
    ran = pathlib.Path("ran.txt")
    ran.write_text(ran.read_text() + cell + ";" if ran.exists() else cell + ";")
    is_mended = cell == "a b" or pathlib.Path("mended").exists()
    assert differences(is_mended, True) == []

def test_that_breaks():
    assert pathlib.Path("mended").exists()

def test_what_could_not_be_redone_is_refused():
    pass

def test_elsewhere():
    pytest.skip("no device")
"""


def load_results():
    spec = importlib.util.spec_from_file_location("matrix_results", SCRIPTS / "matrix_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Results


@pytest.mark.parametrize("jobs", [0, 2])
def test_what_has_passed_is_not_run_again(tmp_path, jobs):
    (tmp_path / "test_cells.py").write_text(CELLS)
    results_type, path = load_results(), tmp_path / "cells.jsonl"

    def run():
        results = results_type(path, "sources", fresh=False)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "matrix_results", "test_cells.py"]
        command += ["-n", str(jobs)] if jobs else []
        own = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        }  # not a worker of ours
        environment = {**own, "MATRIX_RESULTS": str(path), "PYTHONPATH": str(SCRIPTS)}
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300)
        return results, list(results.follow())

    results, lines = run()
    assert len(lines) == 5
    assert results.row()[:-1] == ("4", "1", "1", "1", "1 of 1", "1")
    assert [name.partition("::")[2] for name in sorted(results.failed)] == ["test_bit_identical[c]", "test_that_breaks"]
    (tmp_path / "mended").touch()
    results, lines = run()
    assert results.row()[:-1] == ("4", "3", "0", "0", "1 of 1", "1") and results.failed == [] == results.left
    assert sorted((tmp_path / "ran.txt").read_text().split(";")) == ["", "a b", "c", "c"]
    assert len(lines) == 3, "the two that had passed were not run"
    other = results_type(path, "other sources", fresh=False)
    assert other.outcomes == {}
