"""A variable whose name is nearly that of a setting is named, once, by the command that a person has started."""

from __future__ import annotations

import pytest

from deadpool.cli.words import tell_misspelt_variables
from deadpool.config.environment import LOOKED_AT_VARIABLE
from deadpool.config.job_config import SETTINGS
from deadpool.config.resolution import misspelt_variables


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("DEADPOOL_NODEZ", "DEADPOOL_NODES"),
        ("DEADPOOL_NODE", "DEADPOOL_NODES"),
        ("DEADPOOL_SECRETFILE", "DEADPOOL_SECRET_FILE"),
        ("DEADPOOL_HANG_TIMEOUT", "DEADPOOL_HANG_TIMEOUT_S"),
    ],
)
def test_nearest_name(given, near):
    assert misspelt_variables({given: "3", "HOME": "/root"}) == {given: near}


def test_names_of_ours_and_of_others_are_left_alone():
    ours = [each.variable for each in SETTINGS]
    ours += ["DEADPOOL_SECRET", "DEADPOOL_DEBUG", "DEADPOOL_EVENT_CAUSE", "DEADPOOL_RUN_DIR", "DEADPOOL_PARKED_NODE"]
    others = ["DEADPOOL_CHAOS_MARK", "DEADPOOL_TESTBED_KUBERNETES", "DEADPOOL_MY_BUCKET", "NODES", "DEADPOOL_"]
    assert misspelt_variables(dict.fromkeys([*ours, *others], "1")) == {}


def test_it_is_said_once_also_where_commands_start_others(names, monkeypatch, capfd):
    monkeypatch.setenv("DEADPOOL_NODEZ", "3")
    monkeypatch.setenv(LOOKED_AT_VARIABLE, "")
    monkeypatch.delenv(LOOKED_AT_VARIABLE)
    tell_misspelt_variables()
    tell_misspelt_variables()
    assert (
        capfd.readouterr().err
        == "deadpool: DEADPOOL_NODEZ is read by nothing: the nearest variable is DEADPOOL_NODES\n"
    )


def test_run_says_it(refused, monkeypatch):
    monkeypatch.setenv(LOOKED_AT_VARIABLE, "")
    monkeypatch.delenv(LOOKED_AT_VARIABLE)
    monkeypatch.setenv("DEADPOOL_NODEZ", "3")
    assert "the nearest variable is DEADPOOL_NODES" in refused("run --nodes 0 {script}")
