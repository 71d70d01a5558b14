"""`deadpool pool`: what it says when something cannot be used."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import started
from typer.testing import CliRunner
from waiting import wait_until

from deadpool.cli.main import app

Run = Callable[..., str]


@pytest.fixture
def refused() -> Iterator[Run]:
    """Runs a command in this process, and returns why it was refused."""
    before = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM)}

    def run(*words: object) -> str:
        result = CliRunner().invoke(app, ["pool", *map(str, words)])
        assert result.exit_code != 0
        return result.stderr if isinstance(result.exception, SystemExit) else str(result.exception)

    yield run
    for sig, handler in before.items():
        signal.signal(sig, handler)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status"], "no pool in {pool}: give --pool, or start one with deadpool pool serve"),
        (["remove-job", "a"], "no pool in {pool}: give --pool, or start one with deadpool pool serve"),
        (["join", "--folder", "{pool}-s0"], "no pool in {pool}: give --pool, or start one with deadpool pool serve"),
        (["join", "--folder", "{pool}-s0", "--at", "x"], "at='x' cannot be used: give HOST:PORT of the pool"),
        (["serve", "--host", "203.0.113.1"], "host='203.0.113.1', port=0 cannot be used"),
        (["serve", "--port", "99999"], "port=99999 cannot be used: give another one of at most 65535"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(words: list[str], said: str, tmp_path: Path, refused: Run) -> None:
    command, *rest = [word.format(pool=tmp_path / "pool") for word in words]
    assert refused(command, "--pool", tmp_path / "pool", *rest).startswith(said.format(pool=tmp_path / "pool"))


def test_an_option_that_is_not_known_is_named(refused: Run) -> None:
    assert "No such option: --prioritty" in refused("add-job", "--prioritty", 2, "--run-dir", "run", "a", "x.py")
    assert refused("add-job", "--", "-a", "x.py").startswith("name='-a' cannot be used")


def test_arguments_of_the_script_are_its_own(tmp_path: Path, refused: Run) -> None:
    """They are taken for no option of ours, so that only the pool is missing."""
    (tmp_path / "x.py").write_text("pass\n")
    words = ["--coordinators", "h:1", "--secret-file", "s", "a", tmp_path / "x.py", "--priority", "--its", "-o"]
    assert refused("add-job", "--pool", tmp_path / "pool", *words).startswith("no pool in")


def test_memory_of_a_machine_has_one_default() -> None:
    shown = CliRunner().invoke(app, ["pool", "join", "--help"]).stdout
    assert "default: all of its memory" in " ".join(shown.replace("│", " ").split()) and "0.0" not in shown


def test_a_port_that_is_taken_and_a_folder_that_is_in_use(tmp_path: Path, refused: Run) -> None:
    pool, output = tmp_path / "pool", tmp_path / "output"
    with started("pool", "serve", "--pool", pool, output=output):
        wait_until(lambda: "the pool listens" in output.read_text(), "the pool")
        assert "cannot be used: process" in refused("serve", "--pool", pool)
        machine = ["join", "--pool", pool, "--name", "s0", "--folder", tmp_path / "s0"]
        with started("pool", *machine, output=tmp_path / "s0.log"):
            wait_until(lambda: "machine s0 joined" in output.read_text(), "the machine")
            assert "s0' cannot be used: process" in refused(*machine)
    ended = refused("status", "--pool", pool)
    assert ended.startswith("no pool answers at 127.0.0.1:")
    port = int(ended.split("127.0.0.1:")[1].split(":")[0])
    with socket.create_server(("127.0.0.1", port)):
        assert f"port={port} of 127.0.0.1 cannot be used, it is taken" in refused("serve", "--pool", pool)
