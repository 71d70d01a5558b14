"""The file that tells others whether a node is ready."""

from __future__ import annotations

from pathlib import Path

from deadpool.control.agent.machine import ReadyFile


def test_file_is_there_while_the_node_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    file = ReadyFile(path)
    for ready in (True, True, False, False, True):
        file.set(ready)
        assert path.exists() == ready


def test_file_of_a_process_before_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    path.touch()
    ReadyFile(path)
    assert not path.exists()


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    ReadyFile(None).set(True)
    assert list(tmp_path.iterdir()) == []
