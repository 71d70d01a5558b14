"""Which commands there are: few at the top, in the order of a user's day, and old names that say the new ones."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from deadpool.cli import old_names
from deadpool.cli.main import PANELS, app
from deadpool.cli.old_names import NEW_NAMES

ROOT = Path(__file__).parents[2]
MOST_AT_THE_TOP = 16
KNOW_OLD_NAMES = {"CHANGELOG.md", "tests/cli/test_commands.py", str(Path(old_names.__file__).relative_to(ROOT))}
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


def test_nothing_else_speaks_of_old_names():
    found = []
    old = re.compile(rf"\bdeadpool (?:{'|'.join(NEW_NAMES)})\b(?![-.(=_:])")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in sorted(set(listed) - KNOW_OLD_NAMES):
        file = ROOT / name
        if file.suffix in {".md", ".py", ".yml", ".yaml", ".html", ".txt", ".toml", ".sh", ""} and file.is_file():
            found += [f"{name}: {each}" for each in old.findall(file.read_text(errors="ignore"))]
    assert found == []
