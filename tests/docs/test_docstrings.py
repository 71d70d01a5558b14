"""Docstrings are sentences: none is a fragment whose noun would have to be taken from the name above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "src/deadpool").rglob("*.py"), *(ROOT / "lab/deadpool_lab").rglob("*.py")])

NEEDS_A_NOUN = {
    *("of", "it", "its", "as", "those", "these", "that", "they", "them", "their", "not", "else", "and", "or", "so"),
    *("then", "also", "again", "always", "only", "never", "neither", "mostly", "often", "sometimes", "otherwise"),
    *("until", "unless", "since", "told", "said", "likewise", "even", "too", "still"),
}
"""Whoever begins with one of these speaks of something that was named before, and nothing was."""

PREPOSITIONS = {
    *("by", "with", "without", "from", "for", "at", "on", "in", "to", "after", "before", "when", "while", "if"),
    *("inside", "under", "between", "over", "against", "into", "within", "beside", "through", "during", "near"),
    *("above", "below", "along", "around"),
}
"""A sentence may begin with one of these: with a clause, a comma, and then its subject."""

CLAUSE = re.compile(r"^[^.:;]*?, \S")


def _is_fragment(doc: str) -> bool:
    text = " ".join(doc.split())
    first = text.split(" ")[0].strip(",.:;").lower()
    return first in NEEDS_A_NOUN or (first in PREPOSITIONS and not CLAUSE.match(text))


def _text_of(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value if isinstance(statement.value.value, str) else None
    return None


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields those of modules, classes, functions, and of attributes, which stand below an assignment."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for before, statement in zip([None, *node.body], node.body, strict=False):
            text = _text_of(statement)
            if text is not None and (before is None or isinstance(before, ast.Assign | ast.AnnAssign)):
                yield statement.lineno, text


def test_no_docstring_is_a_fragment() -> None:
    assert len(SOURCES) > 500
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for path in SOURCES
        for line, text in _docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if _is_fragment(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "doc",
    ["Of one job.", "It is lost.", "As torch names it.", "By position.", "From the seat to Go. It may fail, too."],
)
def test_fragments_are_noticed(doc: str) -> None:
    assert _is_fragment(doc)


@pytest.mark.parametrize(
    "doc", ["Returns the ranks.", "The name of a job.", "In a rehearsal, no group reaches a peer."]
)
def test_sentences_pass(doc: str) -> None:
    assert not _is_fragment(doc)


def test_attributes_are_looked_at() -> None:
    assert [text for _, text in _docstrings(ast.parse('A = 1\n"""Of a."""\ndef f():\n    """Of f."""\n'))] == [
        "Of a.",
        "Of f.",
    ]
