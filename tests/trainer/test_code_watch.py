"""Which files of compiled code a live rank is seen to use."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_file_guard import REHEARSE, seat

from deadpool.config.environment import CODE_FOLDERS_VARIABLE
from deadpool.protocol.messages import Rehearse, Seat, UsesCode
from deadpool.trainer.process.code_watch import WATCHED_STEPS, CodeWatch


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(CODE_FOLDERS_VARIABLE, f"{tmp_path}/inductor{os.pathsep}{tmp_path}/triton")
    for name in ("inductor/ab", "inductor/locks", "triton/KEY"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def watch(role: Seat | Rehearse) -> tuple[CodeWatch, list[UsesCode]]:
    told: list[UsesCode] = []
    watch = CodeWatch(SimpleNamespace(playing=role, send=told.append))  # type: ignore[arg-type]
    watch.begin()
    return watch, told


def write_like_torch(path: Path, text: str = "x = 1") -> None:
    beside = path.with_name(f".{os.getpid()}.tmp")
    beside.write_text(text)
    beside.rename(path)


def test_what_is_written_read_and_imported_is_told_once(folder):
    (folder / "triton/KEY/kernel.json").write_text("{}")
    (folder / "inductor/ab/old.py").write_text("x = 1")
    code, told = watch(seat())
    write_like_torch(folder / "inductor/ab/new.py")
    (folder / "triton/KEY/kernel.json").read_text()
    spec = importlib.util.spec_from_file_location("old", folder / "inductor/ab/old.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    (folder / "inductor/locks/a.lock").write_text("")
    (folder / "elsewhere.py").write_text("")
    gone = folder / "inductor/ab/gone.py"
    gone.write_text("")
    gone.unlink()
    code.step_completed()
    code.step_completed()
    [news] = told
    assert news.names == ("0/ab/new.py", "0/ab/old.py", "1/KEY/kernel.json")


def test_later_steps_are_watched_for_a_while(folder):
    code, told = watch(seat())
    for step in range(WATCHED_STEPS + 2):
        write_like_torch(folder / f"inductor/ab/{step}.py")
        code.step_completed()
    assert [news.names for news in told] == [(f"0/ab/{step}.py",) for step in range(WATCHED_STEPS)]


def test_a_rehearsal_tells_nothing(folder):
    code, told = watch(REHEARSE)
    write_like_torch(folder / "inductor/ab/new.py")
    code.step_completed()
    assert told == []


def test_without_folders_nothing_is_watched(folder, monkeypatch):
    monkeypatch.delenv(CODE_FOLDERS_VARIABLE)
    code, told = watch(seat())
    write_like_torch(folder / "inductor/ab/new.py")
    code.step_completed()
    assert told == []
