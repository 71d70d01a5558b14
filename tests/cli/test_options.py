"""Flags are generated from JobConfig: each setting is described once."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from deadpool.cli.main import app
from deadpool.config.job_config import SETTINGS, JobConfig, settings_for
from deadpool.config.resolution import FIRST, resolve, resolve_agent
from deadpool.control.launch.coordinator_processes import CoordinatorProcesses
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError


def command(name: str) -> Any:
    return typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["run", "coordinator", "agent"])
def test_every_setting_of_a_command_has_one_flag_with_its_help(name):
    options = {option.name: option for option in command(name).params}
    for setting in settings_for(name):
        option = options[setting.name]
        assert option.opts == [setting.flag], "one form per flag"
        assert setting.help in option.help.replace(r"\[", "[")


def test_every_setting_has_a_flag_of_some_command():
    assert [setting.name for setting in SETTINGS if not setting.commands] == []


def test_flags_follow_the_names_of_settings():
    flags = {setting.name: setting.flag for setting in SETTINGS}
    assert flags["node_timeout_s"] == "--node-timeout-s"
    assert flags["spare_trainers"] == "--spare-trainers"
    assert flags["faults"] == "--fault", "it is given once per fault"


def test_help_says_the_default():
    help_of = {setting.name: setting.help_text() for setting in SETTINGS}
    assert help_of["slots"].endswith("in at most half of the node's memory)")
    assert help_of["connect_timeout_s"].endswith("(default: 12 node timeouts, at least 30 s)")
    assert "default" not in help_of["topology"]


def test_coordinator_gets_all_settings_that_its_launcher_has(tmp_path):
    config = JobConfig(nodes=3, slots=4, replace_stragglers=True, faults=("at=recovered rank=0",), holders=2).checked()
    spawned: list[list[str]] = []
    coordinators = CoordinatorProcesses(config, RunDir.create(tmp_path), lambda words, sig: spawned.append(words))  # type: ignore[arg-type,return-value]
    words = coordinators._command("127.0.0.1:7", [], faults=True)
    context = command("coordinator").make_context("coordinator", words[1:])
    given = {setting.name: context.params[setting.name] for setting in settings_for("coordinator")}
    given["faults"] = list(given["faults"])  # click has made lists and tuples of them
    expected = {name: value for name, value in dataclasses.asdict(config).items() if name in given}
    assert given == {**expected, "host": "127.0.0.1", "port": 7, "faults": list(config.faults)}


def test_agent_takes_flags_over_environment_over_defaults():
    flags = {"bulk_nice": 7, "spare_trainers": None, "rehearsals": None, "bulk_cpus": None}
    environment = {"DEADPOOL_BULK_NICE": "3", "DEADPOOL_SPARE_TRAINERS": "2", "DEADPOOL_NODES": "many"}
    settings = resolve_agent(flags, environment=environment)
    assert (settings.bulk_nice, settings.spare_trainers, settings.rehearsals) == (7, 2, 0)
    with pytest.raises(ConfigError, match="bulk_nice=20 cannot be used: give a number of 0 to 19"):
        resolve_agent({"bulk_nice": 20}, environment={})


def test_holders_beside_a_scheme_are_refused_unless_a_launcher_has_given_all_settings():
    assert resolve({"nodes": 4, "protect": "copies=2"}, environment={}).scheme.copies == 2
    assert resolve({"nodes": 4, "protect": "copies=2", "holders": 2}, environment={}).scheme.copies == 2
    assert resolve({"nodes": 4, "protect": "auto", "holders": 2}, environment={}).scheme.copies == 2
    assert resolve({"nodes": 4, "protect": "rs(2,1)", "holders": 1}, environment={}, settled=True).scheme.parities == 1
    for settled, holders in ((False, 1), (True, 3)):
        with pytest.raises(ConfigError, match="cannot be used together: give one of them"):
            resolve({"nodes": 4, "protect": "copies=2", "holders": holders}, environment={}, settled=settled)


def test_variables_follow_the_names_of_settings():
    assert resolve({}, environment={"DEADPOOL_NODE_TIMEOUT_S": "7"}).node_timeout_s == 7.0


@pytest.mark.parametrize("command", ["run", "coordinator"])
def test_help_shows_what_matters_first_and_help_all_everything(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    settings = settings_for(command)
    first, full = (CliRunner().invoke(app, [command, word]).stdout for word in ("--help", "--help-all"))
    rows = {text: set(re.findall(r"^│ \*?\s*(--[\w-]+)", text, flags=re.M)) for text in (first, full)}
    assert {each.flag for each in settings} <= rows[full]
    shown = {each.name for each in settings if each.flag in rows[first]}
    assert shown == {each.name for each in settings if each.name in FIRST}
    if command == "run":
        assert "[racks] with r0" in full  # and not taken for a style of the terminal
