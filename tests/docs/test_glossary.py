"""The glossary has the words that rules and messages use, each explained in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| \*\*(?P<word>[^*]+)\*\* \| (?P<meaning>.+) \|$", re.MULTILINE)
SENTENCE = re.compile(r"^[A-Z][^.!?]*(?:\.\w[^.!?]*)*\.$")
"""A capital letter, one full stop at the end, and none in between but in a name such as `events.jsonl`."""


def _entries() -> dict[str, str]:
    rows = ROW.findall((ROOT / "docs/glossary.md").read_text(encoding="utf-8"))
    words = [word for word, _ in rows]
    assert words == sorted(set(words)), "the words stand in order, each once"
    return dict(rows)


def test_words_that_rules_and_messages_use_are_in_it() -> None:
    rules = {"floor", "resume version", "carried", "position", "scheme", "home", "holder", "inventory", "guard"}
    stopping = {"fence", "halt", "abort", "unwind", "rest", "frozen", "stand", "pause", "park"}
    bytes_of_a_copy = {"region", "piece", "chunk", "segment", "slot", "geometry", "stripe", "block", "row"}
    assert rules | stopping | bytes_of_a_copy <= _entries().keys()


def test_each_word_is_explained_in_one_sentence() -> None:
    assert [word for word, meaning in _entries().items() if not SENTENCE.match(meaning)] == []


def test_two_sentences_are_noticed() -> None:
    assert not SENTENCE.match("It is a node. It has no rank.")
    assert not SENTENCE.match("a node that has no rank")
    assert SENTENCE.match("One line in `events.jsonl` that says what was seen.")


def test_every_row_of_the_table_is_read() -> None:
    lines = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith("| **")]) == len(_entries())


def test_the_readme_links_the_glossary() -> None:
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
