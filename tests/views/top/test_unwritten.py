"""A disk that takes no events: whoever reads the log is told that it is not whole, as `deadpool status` tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
from answering_coordinator import AnsweringCoordinator, status_of
from typer.testing import CliRunner

from deadpool.cli.main import app
from deadpool.events.story import unwritten
from deadpool.views.dashboard.run_files import RunFiles
from deadpool.views.dashboard.view import view
from deadpool.views.top.model import Model
from deadpool.views.top.view import draw

RECORDED = Path(__file__).parents[1] / "picture" / "events.jsonl"
WAITING = {"what_waits": "events", "node": None, "reason": "No space left on device", "waiting": 12, "dropped": 0}
LINES = WAITING | {"what_waits": "lines of trainers' logs", "node": "n1", "waiting": 7}
SAID = "events are not written: No space left on device; 12 in memory"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Of a job that runs, as far as is written."""
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    written = [line for line in RECORDED.read_text().splitlines() if '"completed"' not in line]
    (folder / "events.jsonl").write_text("\n".join(written) + "\n")
    return folder


@pytest.fixture
def told() -> dict:
    return status_of(2) | {"storage": [WAITING, LINES], "dropped": [{"what": "events", "node": None, "dropped": 3}]}


COMMANDS = {
    "story": ("show", "story", "{run}", "--json"),
    "report": ("show", "report", "{run}", "--out", "{out}"),
    "picture": ("show", "picture", "{run}", "--out", "{out}"),
    "trace": ("show", "trace", "{run}", "--cause", "fault-9"),
    "logs of a rank": ("show", "logs", "{run}", "--rank", "0"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_command_that_reads_the_log_says_what_it_lacks(folder, told, tmp_path, command):
    words = [word.format(run=folder, out=tmp_path / "out") for word in command]
    with AnsweringCoordinator(folder, told).running():
        done = CliRunner().invoke(app, words)
    assert SAID in done.stderr and "3 events are lost" in done.stderr, done.output
    assert ("of node n1 are not written" in done.stderr) is (command[1] == "logs")
    assert SAID not in done.stdout, "JSON stays JSON"


def test_report_has_it_inside(folder, told, tmp_path):
    with AnsweringCoordinator(folder, told).running():
        CliRunner().invoke(app, ["show", "report", str(folder), "--out", str(tmp_path / "out")])
    assert SAID in (tmp_path / "out").read_text()


def test_log_that_holds_nothing_yet_is_not_called_damaged(folder, told):
    (folder / "events.jsonl").write_text("")
    with AnsweringCoordinator(folder, told).running():
        done = CliRunner().invoke(app, ["show", "story", str(folder)])
    assert SAID in str(done.exception) + done.output


def test_job_that_is_over_is_not_asked(folder, told):
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"t": 9e9, "what": "completed"}\n')
    with AnsweringCoordinator(folder, told).running() as coordinator:
        done = CliRunner().invoke(app, ["show", "story", str(folder)])
    assert done.exit_code == 0 and SAID not in done.stderr and not coordinator.asked


def test_live_page_and_top_say_it_before_all_that_a_person_may_do(folder, told):
    files = RunFiles(folder)
    files.refresh()
    shown = view(files.history, files.losses, files.job(), told, now=files.history.last_t)
    assert shown["head"]["actions"][:2] == unwritten(told)
    model = Model()
    model.update(told)
    assert unwritten(told)[0][:100] in "\n".join(map(str, draw(model, 200, 24).renderables))


def test_status_of_an_older_coordinator_tells_nothing_of_it(told):
    assert unwritten(None) == unwritten({}) == unwritten(status_of(2)) == []
    assert len(unwritten(told)) == 2 and len(unwritten(told, only=None)) == 3
