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

def undisturbed():
    assert pathlib.Path("mended").exists()

def test_that_breaks():
    assert differences(undisturbed(), None) == []

def test_what_could_not_be_redone_is_refused():
    pass

def test_elsewhere():
    pytest.skip("no device")

@pytest.mark.parametrize("verdict", ["exact", "gradient of rank 0"])
def test_audited_and_bit_identical(record_property, verdict):
    record_property("audit", verdict)
    assert verdict == "exact"
"""
VERSIONS = {"torch": "2.15.0", "lightning": "2.6.6"}


def load_results():
    spec = importlib.util.spec_from_file_location("matrix_results", SCRIPTS / "matrix_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Results


@pytest.fixture
def run(tmp_path):
    (tmp_path / "test_cells.py").write_text(CELLS)
    results_type, path = load_results(), tmp_path / "cells.jsonl"

    def run_cells(jobs=0, **more):
        results = results_type(path, "sources", VERSIONS, fresh=False)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "matrix_results", "test_cells.py"]
        command += ["-n", str(jobs)] if jobs else []
        own = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        }  # not a worker of ours
        environment = {**own, "MATRIX_RESULTS": str(path), "PYTHONPATH": str(SCRIPTS), **more}
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300)
        return results, list(results.follow())

    return run_cells


@pytest.mark.parametrize("jobs", [0, 2])
def test_what_has_passed_is_not_run_again(tmp_path, run, jobs):
    results, lines = run(jobs)
    assert len(lines) == 7
    assert results.row()[:-1] == ("6", "2", "1", "2", "1 of 1", "1 of 2", "1")
    failed = ["test_audited_and_bit_identical[gradient of rank 0]", "test_bit_identical[c]", "test_that_breaks"]
    assert [name.partition("::")[2] for name in sorted(results.failed)] == failed
    (tmp_path / "mended").touch()
    results, lines = run(jobs)
    assert results.row()[:-1] == ("6", "4", "0", "1", "1 of 1", "1 of 2", "1") and results.left == []
    assert sorted((tmp_path / "ran.txt").read_text().split(";")) == ["", "a b", "c", "c"]
    assert len(lines) == 4, "the three that had passed were not run"


def test_library_that_was_never_begun_is_not_complete(tmp_path, run):
    assert not load_results()(tmp_path / "never.jsonl", "sources", VERSIONS, fresh=False).is_complete
    results, _ = run()
    assert results.is_complete


def test_sample_has_the_audited_cells_only(run):
    results, lines = run(MATRIX_SAMPLE="1")
    assert results.row()[:-1] == ("2", "1", "0", "1", "0 of 0", "1 of 2", "0")
    assert ["audit: exact" in line for line in lines] == [True, False]
    results, lines = run()
    assert len(lines) == 6, "the whole matrix has the sample in it, and one of its cells has passed"
    assert results.row()[:-1] == ("6", "2", "1", "2", "1 of 1", "1 of 2", "1")


@pytest.mark.parametrize(("sources", "versions"), [("other", VERSIONS), ("sources", {**VERSIONS, "torch": "2.16.0"})])
def test_other_sources_and_other_versions_begin_anew(tmp_path, run, sources, versions):
    results, _ = run()
    assert results.outcomes and results.versions == "torch 2.15.0, lightning 2.6.6"
    assert load_results()(results.path, sources, versions, fresh=False).outcomes == {}
