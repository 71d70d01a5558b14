"""`deadpool plan` as a user calls it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

from deadpool.cli.main import app
from deadpool.errors import ConfigError

RUNNER = CliRunner()


def plan(*arguments: str) -> str:
    done = RUNNER.invoke(app, ["plan", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_everything_has_a_default_and_the_answer_is_short():
    lines = plan().splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 130
    for word in (
        "spares",
        "protection",
        "holders",
        "capture",
        "durable",
        "goodput",
        "torchrun",
        "warm standby",
        "rack",
    ):
        assert any(word in line for line in lines), word


def test_why_names_every_input_and_every_source():
    text = plan("--nodes", "2048", "--why")
    for word in ("arXiv 2407.21783", "docs/benchmarks.md", "store_gb_s", "rack_mtbf_h", "TrainMover", "rs(8,2)"):
        assert word in text, word


def test_json_has_what_the_text_says():
    answer = json.loads(plan("--nodes", "2048", "--spares", "7", "--json"))
    assert answer["recommended"]["spares"] == 7
    assert answer["band"][0] <= answer["goodput"] <= answer["band"][1]
    assert answer["inputs"]["nodes"] == 2048


def test_a_wish_is_kept():
    chosen = ("--protect", "rs(4,1)", "--capture-every", "3", "--durable-every-min", "20")
    answer = json.loads(plan("--nodes", "64", *chosen, "--json"))["recommended"]
    assert (answer["protect"], answer["capture_every"], answer["durable_every_s"]) == ("rs(4,1)", 3, 1200)


def test_the_picture_is_an_svg_with_both_curves(tmp_path):
    file = tmp_path / "plan.svg"
    plan("--nodes", "2048", "--svg", str(file))
    root = ElementTree.parse(file).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 2


def test_the_fewest_spares_that_bring_the_goodput_asked_for():
    """With 16 nodes a spare costs more than it brings: none is the cheapest, and the text says what that means."""
    cheapest, quickest = json.loads(plan("--json")), json.loads(plan("--goodput-at-least", "99.5", "--json"))
    assert cheapest["recommended"]["spares"] == 0 and "least price" in cheapest["aim"]
    assert quickest["recommended"]["spares"] == 1 and quickest["goodput"] >= 0.995 > cheapest["goodput"]
    assert "would stop training until it is back" in plan() and "this plan" in plan()


def test_a_goodput_is_reached_with_the_best_scheme_and_not_with_one_spare_less():
    wanted = json.loads(plan("--nodes", "2048", "--goodput-at-least", "99.52", "--json"))
    fewer = json.loads(plan("--nodes", "2048", "--spares", str(wanted["recommended"]["spares"] - 1), "--json"))
    assert wanted["goodput"] >= 0.9952 > fewer["goodput"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "0"], "nodes=0 cannot be used"),
        (["--protect", "none"], "protect='none' cannot be used"),
        (["--spares", "-1"], "spares=-1 cannot be used"),
        (["--capture-every", "0"], "capture_every=0 cannot be used: give at least 1"),
        (["--goodput-at-least", "100"], "more than 0 and less than 100"),
        (["--goodput-at-least", "99", "--spares", "1"], "cannot be used together"),
        (["--nodes", "2048", "--goodput-at-least", "99.9"], "more bring no more"),
        (["--events", "/nowhere"], "events='/nowhere' cannot be used"),
        (["--measured", "/nowhere"], "measured='/nowhere' cannot be used"),
    ],
)
def test_what_cannot_be_used_is_named(arguments, said):
    done = RUNNER.invoke(app, ["plan", *arguments])
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)


def test_rate_of_silent_errors_gives_an_interval_of_audits_and_what_they_do_not_find():
    large = ("--nodes", "2048")
    answer = json.loads(plan(*large, "--silent-errors", "0.1", "--json"))
    rarer = json.loads(plan(*large, "--silent-errors", "0.001", "--json"))
    assert 0 < answer["recommended"]["audit_every"] < rarer["recommended"]["audit_every"]
    assert answer["audits"]["not_found"] > 0
    lines = plan(*large, "--silent-errors", "0.1").splitlines()
    (row,) = [line for line in lines if "--audit-every" in line]
    assert f"{answer['recommended']['audit_every']} steps" in row
    assert any("not found by it" in line and "come once" in line for line in lines)
    assert max(map(len, lines)) <= 130


def test_small_job_needs_no_audits():
    (row,) = [line for line in plan("--nodes", "2", "--days", "1").splitlines() if "--audit-every" in line]
    assert "none" in row
