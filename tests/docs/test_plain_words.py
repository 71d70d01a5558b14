"""Words that were retired because they mislead or double another stand nowhere but in the change log."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

RETIRED = {
    *("prompt", "prompts", "prompter", "ambush", "ambushes", "strike", "strikes", "struck", "sprung", "armed"),
    *("understudy", "understudies", "nursery", "bear", "born", "bury", "buried", "offspring", "heir", "estate"),
    *("testimony", "testimonies", "testify", "testified", "reign", "reigns", "grooming", "lot", "lots", "squad"),
    *("squads", "stock", "inheritance", "spoil", "spoils", "spoilt", "corrupt", "corrupted"),
    *("guest", "guests", "attendee", "attendees", "street", "streets", "pest", "tour", "tours", "scene"),
    *("scenes", "campaign", "campaigns", "portion", "portions"),
}
WORD = re.compile(r"[A-Z]?[a-z]+")
"""Words of prose and the parts of identifiers: `_prompt_book` and `PromptBook` have two each."""

ALLOWED = {"CHANGELOG.md", "tests/docs/test_plain_words.py"}
KEPT = {"tests/e2e/trl_script.py: prompt", "lab/deadpool_lab/sim/faults/machines.py: corrupt"}
"""Columns of TRL's data sets have the names that TRL gives them. Seeds draw a kind of fault by the name that it had."""


def _texts() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    texts = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if name not in ALLOWED and path.is_file() and path.suffix in {".py", ".md", ".txt", ".toml", ""}:
            texts[name] = path.read_text(encoding="utf-8")
    return texts


def test_no_retired_word_is_left() -> None:
    found = {
        f"{name}: {word}"
        for name, text in _texts().items()
        for word in WORD.findall(f"{Path(name).stem} {text}")
        if word.lower() in RETIRED
    }
    assert sorted(found - KEPT) == []
