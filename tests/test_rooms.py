"""Tests lie where the code lies: each folder is a room of `src/deadpool`, or one of the lab below `tests/lab`."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
ROOMS = TESTS.parent / "src/deadpool"
LAB = TESTS.parent / "lab/deadpool_lab"
OF_NO_ROOM = {"e2e", "docs", "packaging", "gpu", "fuzz"}
"""Whole jobs, pages, what is installed, machines with a GPU, and bytes that nobody would send."""


def _has_room(folder: Path) -> bool:
    place = folder.relative_to(TESTS)
    if place.parts[0] in OF_NO_ROOM or place == Path("lab"):
        return True
    return ((LAB / place.relative_to("lab")) if place.parts[0] == "lab" else ROOMS / place).is_dir()


def test_each_folder_is_a_room() -> None:
    folders = {path.parent for path in TESTS.rglob("*.py")} - {TESTS}
    assert len(folders) > 25
    assert sorted(str(folder.relative_to(TESTS)) for folder in folders if not _has_room(folder)) == []


def test_a_folder_that_is_no_room_is_noticed() -> None:
    assert not _has_room(TESTS / "loaders")
    assert not _has_room(TESTS / "views" / "strangers")
