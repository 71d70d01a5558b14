"""Situations as text: what a core is told, and what it answers. `pytest --rewrite` writes the answers anew.

core coordinator nodes=2      which core, and its shape
> n0: sealed 0 v1@1.1         an input; the lines below it are the effects it had
< everybody has v1@1.1        an input on the way to the situation: its effects are not shown
# a remark
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benches import Bench, make
from notation import options, render

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def replay(text: str) -> str:
    """The transcript with the effects as they are now."""
    bench: Bench | None = None
    lines = []
    for line in text.splitlines():
        match line[:2]:
            case "co":
                (_, kind), named = options(line.split())
                bench = make(kind, named)
            case "> " | "< ":
                assert bench is not None, "a transcript begins with its core"
                effects = render(bench.try_line(line[2:]))
            case "  ":
                continue
        lines.append(line)
        if line.startswith("> "):
            lines += [f"    {effect}" for effect in effects]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    before = path.read_text(encoding="utf-8")
    after = replay(before)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(after, encoding="utf-8")
    else:
        assert after == before
