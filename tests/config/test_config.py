from __future__ import annotations

import re

import pytest

from deadpool.config.job_config import SETTINGS, JobConfig
from deadpool.config.resolution import FIRST, SECTIONS, resolve
from deadpool.config.timeouts import table
from deadpool.config.values import parse_cpus
from deadpool.errors import ConfigError


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path):
    file = tmp_path / "deadpool.toml"
    file.write_text("nodes = 4\nspares = 4\nslots = 4\n")
    environment = {"DEADPOOL_NODES": "3", "DEADPOOL_SPARES": "3", "UNRELATED": "x"}
    config = resolve({"nodes": 2, "spare_trainers": None}, file=file, environment=environment)
    assert (config.nodes, config.spares, config.slots, config.spare_trainers) == (2, 3, 4, JobConfig().spare_trainers)


def test_job_of_one_node_has_no_holders_unless_asked_for():
    assert resolve({}, environment={}).holders == 0
    with pytest.raises(ConfigError, match="holders=1 cannot be used"):
        resolve({"holders": 1}, environment={})


def test_empty_environment_is_not_the_process_environment(monkeypatch):
    monkeypatch.setenv("DEADPOOL_NODES", "7")
    assert resolve({}, environment={}).nodes == 1
    assert resolve({}).nodes == 7


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"nodes": 0}, "nodes=0 cannot be used: give a number of at least 1"),
        ({"nodes": 2, "spares": -1}, "spares=-1 cannot be used"),
        ({"nodes": 2, "holders": 2}, "holders=2 cannot be used: give less than 2, the number of nodes"),
        ({"nodes": 2, "slots": 1}, "slots=1 cannot be used: give at least 2"),
        ({"nodes": 2, "standby_coordinators": 1}, "standby_coordinators=1 cannot be used: give 0 with fewer than 3"),
        ({"nodes": 2, "coordinators": "a:1,b:2"}, "standby_coordinators=1 cannot be used"),
        ({"nodes": 3, "coordinators": "a:1,b"}, "coordinators='b' cannot be used: give HOST:PORT of each"),
        ({"isolation_timeout_s": 9.0}, "isolation_timeout_s=9.0 cannot be used: give at least 10 s, 2 node timeouts"),
        (
            {"connect_timeout_s": 9.0},
            "connect_timeout_s=9.0 cannot be used: give at least 10 s, 2 node timeouts: a node",
        ),
        (
            {"prepare_timeout_s": 19.0, "node_timeout_s": 10.0},
            "prepare_timeout_s=19.0 cannot be used: give at least 20",
        ),
        ({"unwind_timeout_s": -1.0}, "unwind_timeout_s=-1.0 cannot be used: give at least 0 s. With 0 it follows"),
        ({"quarantine_window_s": 0.0}, "quarantine_window_s=0.0 cannot be used: give a time of more than 0 s"),
        ({"overhead_budget": -0.1}, "overhead_budget=-0.1 cannot be used: give a share of the step time"),
        ({"overhead_budget": 1.0}, "overhead_budget=1.0 cannot be used"),
        ({"overhead_budget": float("nan")}, "overhead_budget=nan cannot be used"),
        ({"set_aside_gb": -1.0}, "set_aside_gb=-1.0 cannot be used: give a size in GB, or 0 for none"),
        ({"set_aside_gb": float("nan")}, "set_aside_gb=nan cannot be used"),
        ({"nodes": 2, "node_timeout_s": 0.1}, "node_timeout_s=0.1 cannot be used"),
        ({"nodes": 2, "hang_timeout_s": -1.0}, "hang_timeout_s=-1.0 cannot be used: give 0 or at least 2 s"),
        ({"nodes": 2, "hang_timeout_s": 1.5}, "hang_timeout_s=1.5 cannot be used: give 0 or at least 2 s"),
    ],
)
def test_what_cannot_work_is_refused_with_field_value_and_what_would_do(flags, message):
    with pytest.raises(ConfigError) as refusal:
        resolve(flags, environment={})
    assert message in str(refusal.value)


def test_unknown_or_wrong_settings_are_named(tmp_path):
    file = tmp_path / "deadpool.toml"
    file.write_text("nods = 4\n")
    with pytest.raises(
        ConfigError, match=r"nods is not a setting. The nearest one is nodes; `deadpool run --help-all` lists all"
    ):
        resolve({}, file=file, environment={})
    with pytest.raises(ConfigError, match="DEADPOOL_NODES='many' cannot be used: give a whole number"):
        resolve({}, environment={"DEADPOOL_NODES": "many"})
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve({}, file=tmp_path / "absent.toml", environment={})
    file.write_text("= 4")
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve({}, file=file, environment={})


def test_faults_come_from_flags_environment_and_file(tmp_path):
    first, second = "at=forward step=0 node=n1", "at=recovered rank=0"
    file = tmp_path / "deadpool.toml"
    file.write_text(f"faults = ['{first}', '{second}']\n")
    assert resolve({"faults": (first,)}, environment={}).faults == (first,)
    assert resolve({}, environment={"DEADPOOL_FAULTS": f"{first}; {second}"}).faults == (first, second)
    assert resolve({}, file=file, environment={}).faults == (first, second)
    with pytest.raises(ConfigError, match="rank=1 cannot be used: give a rank of 0 to 0"):
        resolve({"faults": ("at=clip step=0 rank=1",)}, environment={})


def test_overhead_budget_is_half_a_percent_unless_set_or_switched_off():
    assert resolve({}, environment={}).overhead_budget == 0.005
    assert resolve({}, environment={"DEADPOOL_OVERHEAD_BUDGET": "0"}).overhead_budget == 0
    assert resolve({"overhead_budget": 0.02}, environment={}).overhead_budget == 0.02


def test_all_timeouts_follow_the_one():
    config = resolve({"node_timeout_s": 10.0}, environment={})
    assert config.heartbeat_s == 2.0
    assert (config.unwind_timeout_s, config.prepare_timeout_s, config.connect_timeout_s) == (120.0, 1200.0, 120.0)
    assert (config.spare_wait_s, config.isolation_timeout_s) == (1200.0, 1200.0)


def test_timeouts_that_were_given_stand_and_short_ones_have_a_floor():
    config = resolve({"node_timeout_s": 1.0, "connect_timeout_s": 7.0}, environment={})
    assert (config.connect_timeout_s, config.unwind_timeout_s, config.prepare_timeout_s) == (7.0, 20.0, 600.0)


def test_every_timeout_is_told_with_its_purpose():
    config = resolve({"hang_timeout_s": 90.0}, environment={})
    rows = table(config.node_timeout_s, config.derived_timeouts, config.hang_timeout_s)
    told = {name: value for name, value, what_for in rows if what_for}
    assert told == {
        "node timeout": "5 s", "heartbeat": "1 s", "stream": "10 s", "return": "10 s", "fence": "75 s", "hang": "90 s",
        "unwind": "60 s", "prepare": "600 s", "connect": "60 s", "spare wait": "600 s", "isolation": "600 s",
    }  # fmt: skip


def topology(folder, text):
    path = folder / "topology.toml"
    path.write_text(text)
    return {"nodes": 3, "spares": 1, "topology": str(path)}


def test_racks_are_read_from_the_topology_file(tmp_path):
    flags = topology(tmp_path, '[racks]\nr0 = ["n0", "n1"]\nr1 = ["n3"]\n')
    assert resolve(flags, environment={}).racks() == {"n0": "r0", "n1": "r0", "n3": "r1"}
    assert resolve({"nodes": 3}, environment={}).racks() == {}


def test_coordinator_that_finds_the_topology_in_its_environment_does_not_mind_the_spares(tmp_path):
    path = topology(tmp_path, '[racks]\nr0 = ["n3"]\n')["topology"]
    assert resolve({"nodes": 3}, environment={"DEADPOOL_TOPOLOGY": path}).nodes == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[racks]\nr0 = ["n0", "n7"]\n', "rack r0 names node 'n7': known are n0, n1, n2, n3"),
        ('[racks]\nr0 = ["n0"]\nr1 = ["n0"]\n', "node n0 is in two racks, r0 and r1"),
        ('r0 = ["n0"]\n', "needs a table [racks]"),
        ('[racks]\nr0 = "n0"\n', "needs a table [racks]"),
        ("[racks", "topology.toml cannot be read"),
    ],
)
def test_topology_that_cannot_be_used_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError) as refusal:
        resolve(topology(tmp_path, text), environment={}).racks()
    assert message in str(refusal.value)


def test_in_place_is_one_of_three():
    assert resolve({}, environment={"DEADPOOL_IN_PLACE": "never"}).in_place == "never"
    with pytest.raises(ConfigError, match="in_place='sometimes' cannot be used: give one of auto, always, never"):
        resolve({"in_place": "sometimes"}, environment={})


@pytest.mark.parametrize("cpus, found", [("", set()), ("3", {3}), ("0-2,8", {0, 1, 2, 8})])
def test_cpus_are_numbers_and_ranges(cpus, found):
    assert parse_cpus(cpus) == found


def test_cpus_that_are_none_are_refused():
    with pytest.raises(ConfigError, match=r"bulk_cpus='all' cannot be used: give numbers and ranges"):
        resolve({"bulk_cpus": "all"}, environment={})


@pytest.mark.parametrize(("word", "truth"), [("true", True), ("1", True), ("No", False)])
def test_yes_and_no_in_the_environment(word, truth):
    assert resolve({}, environment={"DEADPOOL_REPLACE_STRAGGLERS": word}).replace_stragglers is truth


def test_neither_yes_nor_no():
    with pytest.raises(ConfigError, match="DEADPOOL_REPLACE_STRAGGLERS='maybe' cannot be used: give true or false"):
        resolve({}, environment={"DEADPOOL_REPLACE_STRAGGLERS": "maybe"})


def test_jobs_that_could_never_shrink_are_told_so():
    assert JobConfig(nodes=2, without_spare="shrink").checked().without_spare == "shrink"
    with pytest.raises(ConfigError, match="without_spare='grow' cannot be used: give wait or shrink"):
        JobConfig(nodes=2, without_spare="grow").checked()
    several = "without_spare='shrink' cannot be used: give wait: a job with several coordinators cannot shrink"
    for coordinators in ({"standby_coordinators": 1}, {"coordinators": "a:1,b:1,c:1"}):
        with pytest.raises(ConfigError, match=several):
            JobConfig(nodes=3, without_spare="shrink", **coordinators).checked()
    with pytest.raises(
        ConfigError, match=r"snapshots are coded, by protect='rs\(2,1\)', cannot shrink \(copies=N can\)"
    ):
        JobConfig(nodes=4, without_spare="shrink", protect="rs(2,1)").checked()
    assert JobConfig(nodes=4, without_spare="shrink", protect="copies=2").checked().scheme.copies == 2
    assert JobConfig(nodes=4, without_spare="shrink", protect="auto").checked().protect == "auto"


def test_settings_that_are_told_keep_targets_of_hooks_secret():
    url, command = "https://hooks.example/services/T0/B1/xyz", "notify --token abc"
    config = JobConfig(nodes=2, webhook=(f"failed={url}",), on_event=(f"failed={command}",)).checked()
    told = config.told()
    assert told["webhook"] == ("webhook hooks.example",) and told["on_event"] == ("command notify",)
    assert told["nodes"] == config.nodes and "xyz" not in str(told) and "abc" not in str(told)


def test_bounds_of_adaptive_protection():
    assert resolve({"nodes": 4}, environment={}).protection_bounds() is None
    given = resolve({"nodes": 4, "protect_at_most": "copies=2, memory=0.25,every=8"}, environment={})
    assert given.protection_bounds() == {"copies": 2.0, "memory": 0.25, "every": 8.0}
    auto = resolve({"nodes": 4, "protect": "auto"}, environment={})
    assert auto.protection_bounds() == {"copies": 2.0, "memory": 0.5, "every": 0.0} and str(auto.scheme) == "copies=1"
    twice = resolve({"nodes": 4, "protect": "copies=2", "protect_at_most": "copies=3"}, environment={})
    assert twice.protection_bounds() == {"copies": 3.0, "memory": 0.5, "every": 0.0}
    with pytest.raises(ConfigError, match="at least the 2 that there are anyway"):
        resolve({"nodes": 4, "protect": "copies=2", "protect_at_most": "copies=1"}, environment={})
    evicting = resolve({"nodes": 4, "evict_ill": True}, environment={})
    assert evicting.protection_bounds() == {"copies": 1.0, "memory": 0.5, "every": 0.0}


def test_parity_may_be_allowed_in_place_of_copies():
    assert resolve({"nodes": 4, "protect": "auto"}, environment={}).coded_bound is None
    given = resolve({"nodes": 5, "protect_at_most": "memory=0.25, rs(4, 1),every=8"}, environment={})
    assert str(given.coded_bound) == "rs(4,1)"
    assert given.protection_bounds() == {"copies": 1.0, "memory": 0.25, "every": 8.0}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"protect_at_most": "rs(4,0)"}, "needs 1 <= M <= K"),
        ({"protect_at_most": "rs(4,1),rs(8,2)"}, "give one scheme"),
        ({"protect_at_most": "rs(4"}, "separated by commas"),
        ({"protect_at_most": "scheme=rs(4,1)"}, "separated by commas"),
        ({"protect_at_most": "rs(4,1)", "protect": "copies=2"}, "as many losses as copies=2 survives"),
        ({"protect_at_most": "rs(4,1)", "protect": "rs(4,1)"}, "no rs(K,M) beside protect='rs(4,1)'"),
        ({"protect_at_most": "rs(4,1)", "nodes": 2}, "takes less memory on 2 nodes than copies=1"),
        ({"protect_at_most": "rs(4,4)", "nodes": 4}, "less than nodes=4"),
        ({"protect_at_most": "rs(4,1)", "without_spare": "shrink"}, "which needs whole copies"),
    ],
)
def test_parity_that_cannot_be_allowed(settings, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        resolve({"nodes": 5, **settings}, environment={})


@pytest.mark.parametrize("text", ["copies=4", "copies=0", "copies", "memory=2", "every=100", "holders=2", "copies=2.x"])
def test_bounds_that_cannot_be_used(text):
    with pytest.raises(ConfigError, match="protect_at_most="):
        resolve({"nodes": 4, "protect_at_most": text}, environment={})


def test_dwell_time_of_protection_is_a_time():
    with pytest.raises(ConfigError, match=r"protect_dwell_s=0\.0 cannot be used: give a time"):
        resolve({"protect_dwell_s": 0.0}, environment={})


def test_on_inexact_is_one_of_two():
    assert resolve({}, environment={}).on_inexact == "warn"
    assert resolve({}, environment={"DEADPOOL_ON_INEXACT": "stop"}).on_inexact == "stop"
    with pytest.raises(ConfigError, match="on_inexact='ask' cannot be used: give one of warn, stop"):
        resolve({"on_inexact": "ask"}, environment={})


def test_every_setting_has_one_section():
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(each.name for each in SETTINGS)
    assert set(FIRST) <= set(named) and len(FIRST) == 10


def test_a_file_may_have_sections(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('nodes = 2\n[timeouts]\nnode_timeout_s = 7\n[durable]\ndurable = "/store"\n')
    settings = resolve({}, file=file, environment={})
    assert (settings.nodes, settings.node_timeout_s, settings.durable) == (2, 7.0, "/store")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[timeouts]\nslots = 3\n", "slots stands in [timeouts], and belongs into [snapshots]"),
        ("slots = 3\n[snapshots]\nslots = 4\n", "slots stands there twice"),
        ("[snapshots]\nslot = 4\n", "slot is not a setting. The nearest one is slots;"),
        ("[snapshotz]\nslots = 4\n", "snapshotz is not a setting."),
    ],
)
def test_a_section_that_is_wrong_is_named(tmp_path, text, said):
    file = tmp_path / "job.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        resolve({}, file=file, environment={})
    assert said in str(refused.value) and str(file) in str(refused.value)
