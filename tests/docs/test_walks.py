"""The walks of docs/architecture.md name a function at each arrow, and each of them exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "deadpool"
DIAGRAM = re.compile(r"^```mermaid\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
ARROW = re.compile(r"^\s*\w+\s*-{1,2}>>\s*\w+\s*: (?P<label>.*)$", re.MULTILINE)
NAME = re.compile(r"(?P<path>[\w/]+\.py)::(?P<function>[\w.]+)")


def _arrows() -> list[str]:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return [arrow["label"] for diagram in DIAGRAM.findall(text) for arrow in ARROW.finditer(diagram)]


def _names() -> Iterator[tuple[str, str]]:
    for label in _arrows():
        yield from NAME.findall(label)


@cache
def _functions(path: Path) -> frozenset[str]:
    """Functions of a module, and methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return frozenset(found)


def _exists(path: str, function: str) -> bool:
    return (PACKAGE / path).is_file() and function in _functions(PACKAGE / path)


def test_there_are_three_walks_and_each_arrow_names_a_function() -> None:
    assert len(DIAGRAM.findall((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))) == 3
    assert len(_arrows()) > 30
    assert [label for label in _arrows() if len(NAME.findall(label)) != 1] == []


@pytest.mark.parametrize(("path", "function"), sorted(set(_names())))
def test_the_function_of_an_arrow_exists(path: str, function: str) -> None:
    assert _exists(path, function)


def test_a_function_that_is_not_there_is_noticed() -> None:
    assert not _exists("trainer/job.py", "Job.no_such_method")
    assert not _exists("trainer/no_such_file.py", "Job.complete_step")
