"""The line that says what was skipped and how to get it: it knows the reasons that tests give."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from skips import ELSEWHERE, Skips, need_of

TESTS = Path(__file__).parents[1]
OWN = {"test_matrix_results.py", "test_skips.py"}  # their reasons belong to tests that they write themselves
FILLED_IN = " is not installed"  # after the name of a tool or a library
TESTS_THAT_SKIP = """
import pytest

@pytest.mark.skip(reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("number", [1, 2])
def test_device(number):
    pass

def test_cluster():
    pytest.skip("a Slurm testbed needs /usr/sbin/slurmctld: run scripts/testbed slurm install")

def test_page():
    pytest.skip("there is no chromium: scripts/packages installs it")

def test_that_runs():
    pass

def test_library():
    pytest.importorskip("no_such_library")

def test_elsewhere():
    pytest.skip("this machine has RDMA")
"""


@pytest.mark.parametrize("jobs", [0, 2])
def test_one_line_names_counts_and_commands(tmp_path, jobs):
    (tmp_path / "test_some.py").write_text(TESTS_THAT_SKIP)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "skips", "-n", str(jobs)]
    environment = {**own, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if re.match(r"\d+ skipped:", line)]
    counts, _, commands = line.partition(". To run them: ")
    assert counts == (
        "6 skipped: 2 need an NVIDIA GPU, 1 need Slurm, 1 need Chromium, 1 need packages of Python, "
        "1 for other reasons (-rs names them)"
    )
    assert commands == (
        "scripts/packages slurm browser (as root); .venv/bin/pip install -c constraints.txt -e '.[dev]' -e ./lab"
    )


def test_nothing_is_said_where_nothing_is_skipped():
    assert Skips().line() == ""


def test_reasons_that_do_not_fit_are_counted_together():
    skips = Skips()
    for reason in ["Slurm", "openssh", "tmux is missing", "no chromium", "ISA-L", "needs Ray", "C compiler"]:
        skips.add(reason)
    for reason in ["needs root", "NVIDIA GPU", "could not import 'deepspeed'"]:
        skips.add(reason)
    assert skips.line().startswith("10 skipped: ")
    assert "2 for other reasons" in skips.line()
    assert "scripts/frameworks" in skips.line()  # a command is named even then


def reasons() -> Iterator[tuple[str, str]]:
    """Each place in the tests that skips, with the constant words of its reason."""
    for path in sorted(TESTS.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and path.name not in OWN and (said := reason_of(call)):
                yield f"{path.relative_to(TESTS)}:{call.lineno}", said


def reason_of(call: ast.Call) -> str:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name not in ("skip", "skipif", "importorskip"):
        return ""
    given = [word.value for word in call.keywords if word.arg == "reason"]
    if name == "importorskip" and not given:
        return f"could not import {words_of(call.args[0])!r}"
    return words_of(given[0] if given else call.args[0])


def words_of(node: ast.expr) -> str:
    """Without what is filled in at run time."""
    return "".join(part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and type(part.value) is str)


def test_every_reason_in_the_tests_is_known():
    found = dict(reasons())
    assert len(found) > 50
    unknown = {where: said for where, said in found.items() if not (need_of(said) or re.search(ELSEWHERE, said))}
    assert set(unknown.values()) == {FILLED_IN}, unknown


@pytest.mark.parametrize(
    ("name", "need"),
    [("nft", "the tools of doctor's tests"), ("deepspeed", "frameworks"), ("lightning", "packages of Python")],
)
def test_names_that_are_filled_in_are_known(name, need):
    assert need_of(name + FILLED_IN).name == need


def test_packages_that_are_named_are_those_that_can_be_installed():
    script = TESTS.parent / "scripts" / "packages"
    groups = set(re.findall(r"^    \[(\w+)\]=", script.read_text(), re.MULTILINE))
    from skips import NEEDS, PACKAGES

    assert {need.argument for need in NEEDS if need.command == PACKAGES} == groups
