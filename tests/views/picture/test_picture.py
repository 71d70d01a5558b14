"""Pictures of recoveries are drawn from the events of a real run: 4 ranks of DDP, node n3 killed in its eighth step."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from deadpool.cli.main import app
from deadpool.errors import ConfigError
from deadpool.events.event import read_events
from deadpool.events.story import PHASES
from deadpool.views.picture.page import choose, draw_page, phase_bars, rank_rows, read_steps
from deadpool.views.picture.svg import Axis, in_words

EVENTS = Path(__file__).with_name("events.jsonl")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def records():
    return read_events(EVENTS)


def words_of(drawn: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def shapes_of(drawn: str, kind: str) -> int:
    return sum(each.get("class") == kind for each in ElementTree.fromstring(drawn).iter())


def test_tells_what_was_killed_and_every_phase(records):
    drawn = draw_page(records)
    words = words_of(drawn)
    assert any(text.startswith("Node n3 killed: 0.18 s") for text in words)
    assert "4 ranks · rank 3 lost, resumed at step 7 · 1 completed step done again · fault-1" in words
    assert set(PHASES) <= set(words)
    assert {"rank 0 · n0", "rank 3 · n4"} <= set(words), "the rank is shown with the node that has it now"


def test_phases_follow_one_another_up_to_the_first_step(records):
    recovery = choose(records, None)
    bars = phase_bars(recovery)
    assert [bar.began for bar in bars[1:]] == [bar.ended for bar in bars[:-1]]
    assert bars[-1].ended == pytest.approx(recovery.first_step_s)
    for row in rank_rows(recovery):
        within = {bar.phase: bar for bar in bars}
        assert all(bar.ended <= within[bar.phase].ended + 1e-6 for bar in row.bars)
        assert [bar.phase for bar in row.bars] == ["unwind", "prepare", "connect", "redo"][row.replaced :]


def test_the_standstill_shows_in_the_step_after_the_fault(records):
    recovery = choose(records, None)
    steps = read_steps(records, recovery)
    longest = {rank: max(each.seconds for each in stretches[-1]) for rank, stretches in steps.by_rank.items()}
    assert len(longest) == 4
    assert all(recovery.first_step_s < seconds + 0.1 for seconds in longest.values())
    assert all(seconds > 2 * steps.usual_s for seconds in longest.values())
    assert shapes_of(draw_page(records), "f-newcomer") > 3, "the replaced rank's steps are drawn"


def test_log_without_step_times_still_gives_a_timeline(records):
    without = [record for record in records if record["what"] != "step_times"]
    words = words_of(draw_page(without))
    assert "this log has no step times around the fault" in words
    assert set(PHASES) <= set(words)


def test_run_without_a_recovery_is_refused(records):
    quiet = [record for record in records if record.get("cause") in (None, "start")]
    with pytest.raises(ConfigError, match="no completed recovery to draw; completed recoveries: none"):
        draw_page(quiet)
    with pytest.raises(ConfigError, match="no completed recovery from fault-7 to draw; completed recoveries: fault-1"):
        draw_page(records, "fault-7")


def test_command_writes_the_file(tmp_path):
    shutil.copy(EVENTS, tmp_path)
    result = CliRunner().invoke(app, ["show", "picture", str(tmp_path), "--out", str(tmp_path / "new" / "picture.svg")])
    assert result.exit_code == 0, result.output
    assert words_of((tmp_path / "new" / "picture.svg").read_text())


def test_axis_has_round_ticks():
    assert Axis(0.0, 0.23, 0.0, 100.0).ticks(4) == pytest.approx([0.0, 0.1, 0.2])
    assert Axis(-0.4, 0.65, 0.0, 100.0).ticks(5) == pytest.approx([-0.25, 0.0, 0.25, 0.5])
    assert [in_words(s) for s in (57e-6, 0.0631, 0.32, 2.1, 75.0)] == ["57 µs", "63 ms", "0.32 s", "2.10 s", "75 s"]
