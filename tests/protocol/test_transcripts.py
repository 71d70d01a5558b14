"""Situations as text: what a core is told, and what it answers. `pytest --rewrite` writes the answers anew.

# A sentence that says what the transcript shows. Further remarks stand wherever they are needed.
core coordinator nodes=2      which core, and its shape
> n0: sealed 0 v1@1.1         an input; the lines below it are the effects it had
< everybody has v1@1.1        an input on the way to the situation: its effects are not shown
running agent declared=100    a macro: see macros.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benches import Bench, make
from macros import expand
from notation import options, render

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def replay(text: str) -> str:
    """The transcript with the effects as they are now."""
    bench: Bench | None = None
    lines = []
    for line in (line for line in text.splitlines() if not line.startswith("  ")):
        lines.append(line)
        for plain in expand(line):
            match plain[:2]:
                case "co":
                    (_, kind), named = options(plain.split())
                    bench = make(kind, named)
                case "> " | "< ":
                    assert bench is not None, "a transcript begins with its core"
                    effects = render(bench.try_line(plain[2:]))
        if line.startswith("> "):
            lines += [f"    {effect}" for effect in effects]
    return "\n".join(lines) + "\n"


def opening(text: str) -> str:
    """The remark before the first line that is not one."""
    lines = text.splitlines()
    count = next(index for index, line in enumerate(lines) if not line.startswith("# "))
    return " ".join(line.removeprefix("# ") for line in lines[:count])


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    before = path.read_text(encoding="utf-8")
    after = replay(before)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(after, encoding="utf-8")
    else:
        assert after == before


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_opens_with_a_sentence_that_says_what_it_shows(path: Path) -> None:
    said = opening(path.read_text(encoding="utf-8"))
    assert said[:1].isupper() and said.endswith(".") and len(said.split()) >= 5, said


def test_macro_of_a_running_coordinator() -> None:
    assert expand("running coordinator nodes=2 hang=4 spares=1 late_spares=1 has=0,1 step=1") == [
        "core coordinator nodes=2 hang=4",
        "< n0: join",
        "< n1: join",
        "< s0: join spare",
        "< everybody prepared",
        "< everybody connected",
        "< s1: join spare",
        "< everybody has v0@1.1",
        "< everybody has v1@1.1",
        "< everybody heartbeat 1",
    ]


def test_macro_of_a_running_agent() -> None:
    assert expand("running agent slots=3 declared=100") == [
        "core agent slots=3",
        "< welcome",
        "< n0.0: hello",
        "< plan 1.1",
        "< go 1.1",
        "< n0.0: declare 100",
        "< allocated 1",
    ]


def test_macros_of_time_and_of_repetition() -> None:
    assert expand("idle 8 n0 n2") == 2 * ["< wait 4", "< n0: heartbeat", "< n2: heartbeat"]
    assert expand("repeat 2 n0: sealed 0 v#@1.1; wait 1") == [
        "< n0: sealed 0 v0@1.1",
        "< wait 1",
        "< n0: sealed 0 v1@1.1",
        "< wait 1",
    ]
    assert expand("> wait 4") == ["> wait 4"]
