"""What tests of commands have in common: names of files and folders, and commands that are called in this process."""

from __future__ import annotations

import os
import sys

import pytest
from command import check_sentences, look_around

from deadpool.cli.main import main


@pytest.fixture(autouse=True)
def knows_what_was_there_before() -> None:
    look_around()


@pytest.fixture
def names(tmp_path, monkeypatch) -> dict[str, object]:
    """What the words in braces stand for. The current folder has no jobs."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("DEADPOOL_")]:
        monkeypatch.delenv(variable)
    (tmp_path / "script.py").write_text("print('over')")
    (tmp_path / "empty.py").touch()
    (tmp_path / "file").write_text("neither TOML nor JSON\n")
    (tmp_path / "toml").write_text("nodez = 3\n")
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    for folder in ("folder", "broken", "odd", "told", "known", "open", "far"):
        (tmp_path / folder).mkdir()
    (tmp_path / "odd" / "job.json").write_text("[]")
    (tmp_path / "told" / "events.jsonl").write_text('{"t": 1.0, "what": "fault", "cause": "fault-1"}\n')
    (tmp_path / "broken" / "job.json").write_text("{")
    for folder in ("open", "known"):
        (tmp_path / folder / "job.json").write_text('{"host": "127.0.0.1", "port": 1, "pid": 1, "tls": "off"}')
        (tmp_path / folder / "secret").write_text("s" * 64)
    (tmp_path / "known" / "secret").chmod(0o600)
    (tmp_path / "open" / "secret").chmod(0o644)
    (tmp_path / "far" / "job.json").write_text('{"host": "127.0.0.1", "port": 99999, "pid": 1, "tls": "off"}')
    folders = ("folder", "broken", "odd", "told", "known", "open", "far", "absent", "new")
    here = {name: tmp_path / name for name in ("file", "binary", "toml", *folders)}
    return {
        **here,
        "nothing": "",
        "script": tmp_path / "script.py",
        "empty": tmp_path / "empty.py",
        "python": sys.executable,
    }


@pytest.fixture
def ended(names, monkeypatch):
    """Calls the command; returns its exit code."""

    def call(line: str) -> object:
        monkeypatch.setattr(sys, "argv", ["deadpool", *line.split()])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code

    return call


@pytest.fixture
def refused(names, monkeypatch, capfd):
    """Calls the command; returns what it said. A word with spaces is written with @ in their place."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(line: str) -> str:
        words = [word.format(**names).replace("@", " ") for word in line.split()]
        monkeypatch.setattr(sys, "argv", ["deadpool", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = "".join(capfd.readouterr())
        assert ended.value.code == 2, said
        assert "Traceback" not in said
        check_sentences(said)
        return said

    return call
