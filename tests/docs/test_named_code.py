"""What pages say of the code is there: files, Python that parses, commands and options that exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from deadpool.cli.command_groups import LAB_COMMANDS, lab_command
from deadpool.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs/howto").glob("*.md")),
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("architecture", "benchmarks", "design-notes", "exactness", "glossary", "gpu", "journal")
    ),
    *(ROOT / "docs" / f"{name}.md" for name in ("security", "tutorial")),
]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
NAMED_FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.py)(?:::\w+)?`")

per_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def _blocks(page: Path, *languages: str) -> Iterator[str]:
    for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield text


@per_page
def test_files_that_a_page_names_are_there(page: Path) -> None:
    roots = (ROOT, ROOT / "src/deadpool", ROOT / "lab/deadpool_lab")
    named = NAMED_FILE.findall(page.read_text(encoding="utf-8"))
    with_folder = [name for name in named if "/" in name]
    assert [name for name in with_folder if not any((root / name).exists() for root in roots)] == []


def test_files_that_code_and_pages_name_without_a_folder_are_there() -> None:
    """Modules are folded and renamed, and what is said beside them of others stays behind."""
    there = {
        path.name
        for folder in ("src", "lab", "tests", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
    }
    sources = [path for folder in ("src", "lab") for path in (ROOT / folder).rglob("*.py")]
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name != "design-notes.md"]
    named = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*sources, *pages)
        for name in re.findall(r"(?<![\w/.*-])([a-z][a-z_0-9]*\.py)\b", path.read_text(encoding="utf-8"))
        if name not in there
    }
    assert named == set()


def test_folders_of_the_contributors_lists_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {name.rstrip("/") for name in re.findall(r"`((?:src|lab|tests|docs|scripts)/[\w/]*)`", text)}
    assert {name for name in folders if not (ROOT / name).exists()} == set()


@per_page
def test_python_of_a_page_parses(page: Path) -> None:
    for text in _blocks(page, "python"):
        ast.parse(text)


def _command_lines(page: Path) -> Iterator[list[str]]:
    for text in _blocks(page, ""):
        for line in text.splitlines():
            if re.match(r"(\$ )?deadpool [a-z]", line) and not line.startswith("deadpool: "):
                yield shlex.split(line.removeprefix("$ "), comments=True)


@per_page
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    for words in _command_lines(page):
        command, own = typer.main.get_command(app), words[1:]
        while hasattr(command, "commands"):
            name, *own = own
            command = lab_command(name) if name in LAB_COMMANDS else command.commands[name]
        known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        for word in own[: own.index("--")] if "--" in own else own:
            if word.endswith(".py"):
                break  # what follows are the script's own
            assert not word.startswith("-") or word.partition("=")[0] in known, shlex.join(words)
