"""Which commands there are: few at the top, in the order of a user's day, and old names that say the new ones."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from deadpool.cli import command_groups
from deadpool.cli.arguments import in_new_form
from deadpool.cli.command_groups import LAB_COMMANDS, NEW_NAMES
from deadpool.cli.main import PANELS, app

ROOT = Path(__file__).parents[2]
MOST_AT_THE_TOP = 16
KNOW_OLD_NAMES = {"CHANGELOG.md", "tests/cli/test_commands.py", str(Path(command_groups.__file__).relative_to(ROOT))}
TOP: Any = typer.main.get_command(app)


def printed(*words: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, list(words), prog_name="deadpool")
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_there_are_few_commands_at_the_top(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = re.findall(r"^│ ([a-z]+)  ", printed("--help")[0], flags=re.MULTILINE)
    assert rows == [name for panel in PANELS.values() for name in panel], "panels in the order of a user's day"
    assert set(TOP.commands) == set(rows), "none is hidden"
    assert len(rows) <= MOST_AT_THE_TOP


def test_every_command_says_at_the_top_in_one_line_what_it_does(monkeypatch):
    monkeypatch.setenv("COLUMNS", "130")
    lines = printed("--help")[0].splitlines()
    assert [line for line in lines if line.startswith("│   ") and line.strip("│ ")] == []


@pytest.mark.parametrize("old", NEW_NAMES)
def test_old_name_works_and_says_the_new_one(old):
    new = NEW_NAMES[old].split()
    assert printed(*new, "--help")[1] == ""
    assert printed(old, "--help") == (printed(*new, "--help")[0], f"deadpool {old} is now: deadpool {' '.join(new)}\n")
    assert old not in TOP.commands


def test_every_command_that_the_lab_brings_is_listed():
    brought = tomllib.loads((ROOT / "lab/pyproject.toml").read_text())["project"]["entry-points"]["deadpool.lab"]
    assert set(LAB_COMMANDS) == set(brought) - {"plan-simulation"}, "plan-simulation is `deadpool plan --simulate`"


def test_nothing_else_speaks_of_old_names():
    found = []
    old = re.compile(rf"\bdeadpool (?:{'|'.join(NEW_NAMES)})\b(?![-.(=_:])")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in sorted(set(listed) - KNOW_OLD_NAMES):
        file = ROOT / name
        if file.suffix in {".md", ".py", ".yml", ".yaml", ".html", ".txt", ".toml", ".sh", ""} and file.is_file():
            found += [f"{name}: {each}" for each in old.findall(file.read_text(errors="ignore"))]
    assert found == []


def test_old_name_of_an_option_says_the_new_one(capfd):
    assert in_new_form(600.0, None, "--timeout-s --wait-s") == 600.0
    assert capfd.readouterr().err == ""
    assert in_new_form(600.0, 3.0, "--timeout-s --wait-s") == 3.0
    assert capfd.readouterr().err == "deadpool: --timeout-s is now: --wait-s. The old name ends with the next release\n"


def test_json_prints_and_out_is_a_file_in_every_command():
    """Of the lab too, whose commands are read from its own files."""
    for name, each in every_command():
        forms = {option: one for one in each.params for option in one.opts}
        assert "--json" not in forms or forms["--json"].hidden or forms["--json"].is_flag, name
        assert "--out" not in forms or not forms["--out"].is_flag, name


def every_command(group: Any = TOP, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from every_command(each, f"{before}{name} ")
        else:
            yield f"{before}{name}", command_groups.lab_command(name) if before == "lab " else each


def test_plan_finds_the_lab_before_it_works(refused, monkeypatch):
    """`--simulate` works for minutes."""

    def works(*_: object, **__: object) -> None:
        raise AssertionError("the plan was made first")

    monkeypatch.setattr("deadpool.sizing.advice.advise", works)
    monkeypatch.setattr("deadpool.cli.command_groups.entry_points", lambda **_: [])
    assert "torch-deadpool-lab, which is not installed" in refused("plan --simulate 2")


def test_lab_that_is_older_is_told_from_one_that_is_missing(refused, monkeypatch):
    installed = command_groups.entry_points(group="deadpool.lab")
    older = [entry for entry in installed if entry.name != "corruption"]
    monkeypatch.setattr(
        command_groups,
        "entry_points",
        lambda group, name=None: [entry for entry in older if name in (None, entry.name)],
    )
    said = refused("lab corruption")
    assert "is older than this DeadPool and has no 'corruption'" in said and "pip install ./lab" in said
