"""No input, effect or message is dropped silently: whoever matches over them says what becomes of all the others.

The unions are closed (protocol/inputs.py, effects.py, messages/), and `assert_never` makes mypy object where a case is
missing. Whoever looks for a few kinds only says so by a last case of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from test_layers import modules, source_of

SUBJECTS = {"input", "effect", "message"}
OF_OTHERS = {"clusters.ssh.launcher", "clusters.ssh.outcome"}
"""Lines of another process as dictionaries, of which each reader knows some."""


def open_matches(source: str) -> list[int]:
    """Lines of matches that fall through."""
    matches = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Match)]
    return [match.lineno for match in matches if _is_of_ours(match.subject) and not _takes_all(match.cases[-1])]


def _is_of_ours(subject: ast.expr) -> bool:
    return isinstance(subject, ast.Name) and subject.id in SUBJECTS


def _takes_all(case: ast.match_case) -> bool:
    """`case _` or `case _ as never`, without a condition."""
    pattern: ast.pattern | None = case.pattern
    while isinstance(pattern, ast.MatchAs):
        pattern = pattern.pattern
    return pattern is None and case.guard is None


def _everywhere() -> Iterator[tuple[str, list[int]]]:
    for module in modules():
        if module not in OF_OTHERS and (lines := open_matches(source_of(module).read_text(encoding="utf-8"))):
            yield module, lines


def test_no_match_falls_through():
    assert not dict(_everywhere())


@pytest.mark.parametrize(
    ("source", "is_open"),
    [
        ("match effect:\n    case Drop(): pass", True),
        ("match effect:\n    case Drop(): pass\n    case _ if calm: pass", True),
        ("match effect:\n    case Drop(): pass\n    case _ as never: assert_never(never)", False),
        ("match message:\n    case Go(): pass\n    case _: pass", False),
        ("match color:\n    case 1: pass", False),
    ],
)
def test_open_match_is_found(source, is_open):
    assert bool(open_matches(source)) is is_open
