"""`deadpool show top` in a real terminal: small and wide, four thousand nodes, its keys."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys

import pytest
from answering_coordinator import AnsweringCoordinator, status_of
from tmux_screen import Screen, needs_tmux
from waiting import LIMIT_S

from deadpool.views.top.model import Model
from deadpool.views.top.view import keys_in

TOP = [sys.executable, "-m", "deadpool.cli.main", "show", "top"]


@pytest.fixture(scope="module")
def large() -> dict:
    return status_of(4096)


@needs_tmux
def test_four_thousand_nodes_are_paged_at_80x24_and_wide(tmp_path, large):
    folder = tmp_path / "a run's folder"
    with (
        AnsweringCoordinator(folder, large).running() as coordinator,
        Screen(80, 24).running([*TOP, str(folder)]) as screen,
    ):
        text = screen.await_text(lambda text: "1-17 of 4097" in text)
        assert "spares 1" in text.splitlines()[0]
        assert ">gpu-0000" in text and "gpu-0016" in text and "gpu-0017" not in text
        assert len(text.splitlines()) == 24 and max(map(len, text.splitlines())) <= 80
        assert "copies at" not in text
        screen.press("NPage")
        screen.await_text(lambda text: "18-34 of 4097" in text and ">gpu-0017" in text)
        screen.press("Down", "Down", "Up")
        screen.await_text(lambda text: ">gpu-0018" in text)
        screen.press("G")
        text = screen.await_text(lambda text: "of 4097" in text and ">gpu-4096" in text)
        assert "spare" in text
        screen.resize(200, 50)
        text = screen.await_text(lambda text: "copies at" in text and re.search(r"\d+-4097 of 4097", text) is not None)
        assert len(text.splitlines()) == 50

        screen.press("g")
        screen.await_text(lambda text: ">gpu-0000" in text)
        screen.press("d")
        screen.await_text(lambda text: "Drain node gpu-0000?" in text)
        screen.press("n")
        screen.await_text(lambda text: "nothing was drained" in text)
        assert not [ask for ask in coordinator.asked if ask.what == "drain"]
        screen.press("d", "y")
        screen.await_text(lambda text: "not drained: no spare can take the ranks of gpu-0000" in text)
        screen.press("s")
        screen.await_text(lambda text: "no recovery yet" in text)
        screen.press("q")
        screen.await_text(lambda text: "ENDED 0" in text)


@needs_tmux
def test_coordinator_that_is_gone_is_said_and_the_screen_stays(tmp_path):
    coordinator = AnsweringCoordinator(tmp_path / "run", status_of(3))
    with contextlib.ExitStack() as showing:
        with coordinator.running():
            screen = showing.enter_context(Screen(80, 24).running([*TOP, str(tmp_path / "run")]))
            screen.await_text(lambda text: "gpu-0002" in text)
        text = screen.await_text(lambda text: "no coordinator answers" in text)
        assert "gpu-0002" in text
        screen.press("q")
        screen.await_text(lambda text: "ENDED 0" in text)


@needs_tmux
def test_terminal_that_is_too_small_is_told_so(tmp_path):
    with (
        AnsweringCoordinator(tmp_path / "run", status_of(3)).running(),
        Screen(40, 8).running([*TOP, str(tmp_path / "run")]) as screen,
    ):
        screen.await_text(lambda text: "this terminal has 40x8" in text)
        screen.resize(80, 24)
        screen.await_text(lambda text: "gpu-0002" in text)


def test_without_a_terminal_it_says_what_to_use(tmp_path):
    done = subprocess.run(
        [*TOP, str(tmp_path)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S
    )
    assert done.returncode == 2 and "deadpool status --json" in done.stderr


def test_nodes_that_need_somebody_come_first_and_the_cursor_stays_on_its_node():
    status = json.loads(json.dumps(status_of(5)))
    model = Model()
    model.update(status)
    model.press("down")
    assert model.node == "gpu-0001"
    status["nodes"][4]["quarantined"] = "3 faults"
    status["stragglers"] = [{"node": "gpu-0003"}]
    model.update(status)
    assert [node["node"] for node in model.nodes][:3] == ["gpu-0004", "gpu-0003", "gpu-0000"]
    assert model.node == "gpu-0001"
    status["nodes"] = [node for node in status["nodes"] if node["node"] != "gpu-0001"]
    model.update(status)
    assert model.node is not None


def test_cursor_that_no_key_has_moved_is_in_the_first_line():
    """Whichever node has joined first."""
    status = json.loads(json.dumps(status_of(3)))
    model = Model()
    model.update(status | {"nodes": status["nodes"][1:2]})
    model.update(status)
    assert model.node == model.nodes[0]["node"] == "gpu-0000"


@pytest.mark.parametrize(
    ("typed", "keys"),
    [("dy", ["d", "y"]), ("\x1b[A\x1b[6~q", ["up", "pagedown", "q"]), ("\x1b", ["escape"]), ("\x1b[Zq", ["q"])],
)
def test_keys(typed, keys):
    assert keys_in(typed) == keys
