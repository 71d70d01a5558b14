"""Whether a run has all the files, and all their lines, that another run of the same script has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def lost_files(expected: Path, found: Path, patterns: Sequence[str]) -> list[str]:
    """Other files and lines that were written twice are nobody's loss."""
    problems = []
    for path in sorted(each for pattern in patterns for each in expected.glob(pattern)):
        name = path.relative_to(expected)
        if not (found / name).exists():
            problems.append(f"the file {name} is gone")
        elif path.suffix == ".txt" and (lost := _lines(path) - _lines(found / name)):
            problems.append(f"the file {name} has lost {len(lost)} lines, first: {min(lost)}")
    return problems


def _lines(path: Path) -> set[str]:
    return set(path.read_text(errors="replace").splitlines())
