"""The parts of `deadpool ssh` that need no machine: the hosts file, what is refused, when a job is over, variables."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
from typing import Any, cast

import pytest
from ssh_job import plan_after_loss

from deadpool import __version__
from deadpool.cli.engines.ssh import forwarded
from deadpool.cli.start.coordinator import founds
from deadpool.clusters.ssh import outcome as outcome_module
from deadpool.clusters.ssh.connection import SshClient
from deadpool.clusters.ssh.daemon import Daemon
from deadpool.clusters.ssh.hosts import Checked, Host, findings, read_hosts, settle
from deadpool.clusters.ssh.launcher import SshJob, SshOptions
from deadpool.clusters.ssh.outcome import HostsOutcome
from deadpool.clusters.ssh.upstream import decode_marked, encode_marked
from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import lock_folder
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.events.event import read_events
from deadpool.protocol.identity import Address


def test_hosts_file(tmp_path):
    path = tmp_path / "hosts of mine.txt"
    path.write_text(
        "# all of them\n\nn1\nalice@gpu-a07   rack=r1 # near the door\n"
        "ssh://bob@c.example:2222 name=c address=10.1.0.3 python=/opt/py/bin/python\n"
    )
    assert read_hosts(path) == [
        Host(name="n1", target="n1"),
        Host(name="gpu-a07", target="alice@gpu-a07", rack="r1"),
        Host(name="c", target="ssh://bob@c.example:2222", address="10.1.0.3", python="/opt/py/bin/python"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nothing\n", "names no machine"),
        ("n1\nn2 slots=8\n", "line 2: 'slots=8' is not known"),
        ("n1 rack=\n", "'rack=' is not known"),
        ("n1 address=fe80::1\n", "give an IPv4 address"),
        ("n1\nroot@n1\n", "two nodes are called n1"),
        ("-oProxyCommand=rm\n", "is not a machine"),
        ("gpu[1-3]\n", "one machine per line"),
    ],
)
def test_hosts_file_that_is_refused(tmp_path, text, said):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        read_hosts(tmp_path / "hosts")


def test_hosts_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_hosts(tmp_path / "hosts")


def hosts(count: int) -> list[Host]:
    return [Host(name=f"n{number}", target=f"n{number}") for number in range(count)]


def test_all_hosts_but_the_spares_train_and_a_second_coordinator_stands_by(monkeypatch):
    config, used = settle({"spares": 1, "nodes": None}, None, hosts(4))
    assert (config.nodes, config.standby_coordinators, len(used)) == (3, 1, 4)
    config, used = settle({"nodes": 2}, None, hosts(4))
    assert (config.nodes, config.standby_coordinators, [host.name for host in used]) == (2, 0, ["n0", "n1"])
    monkeypatch.setenv("DEADPOOL_SPARES", "1")
    config, used = settle({"nodes": None}, None, hosts(3))
    assert (config.nodes, config.spares, len(used)) == (2, 1, 3)
    with pytest.raises(ConfigError, match="with 2 hosts"):
        settle({"spares": 2}, None, hosts(2))


def facts(**changed: Any) -> dict[str, Any]:
    usual = {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6", "deadpool": __version__, "problems": []}
    clock = {"asked_at": 100.0, "answered_at": 100.2, "time": 100.1}
    return {**usual, **clock, "executable": "/usr/bin/python", **changed}


def found(*of_hosts: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """Each host has an address of its own unless its facts have one."""
    checked = [
        Checked(host=host, facts={"address": f"10.0.0.{host.name[1:]}", **each})
        for host, each in zip(hosts(len(of_hosts)), of_hosts, strict=True)
    ]
    return [(finding.node, finding.fatal, finding.text) for finding in findings(checked)]


def test_hosts_that_are_alike_are_not_refused():
    assert found(facts(), facts(), facts()) == []


@pytest.mark.parametrize(
    ("odd", "fatal", "said"),
    [
        ({"torch": "2.12.0"}, True, "torch 2.12.0, the others have 2.13.0"),
        ({"torch": ""}, True, "torch is not installed"),
        ({"python": "3.12.1"}, True, "python 3.12.1, the others have 3.11.7"),
        ({"deadpool": "0.0.1"}, True, f"deadpool 0.0.1, here it is {__version__}"),
        ({"time": 131.0}, False, "its clock is 30.9 s ahead of the others"),
        ({"time": 69.0}, False, "its clock is 31.1 s behind the others"),
        ({"address": "127.0.0.1"}, True, "where no other host reaches it"),
        ({"problems": ["there is no script 'x.py'"]}, True, "there is no script 'x.py'"),
        ({"address": "10.0.0.2"}, False, "have one address, 10.0.0.2"),
    ],
)
def test_host_that_is_odd(odd, fatal, said):
    ((node, is_fatal, text),) = found(facts(), facts(**odd), facts())
    assert node in ("n1", "n2") and is_fatal is fatal and said in text


def test_clock_that_cannot_be_told_exactly_is_not_called_wrong():
    """The answer took ten seconds: the clock may be right."""
    assert found(facts(), facts(asked_at=100.0, answered_at=110.0, time=109.0), facts()) == []


def test_host_that_cannot_be_reached_is_refused_with_the_words_of_ssh():
    (finding,) = findings([Checked(host=hosts(1)[0], problem="ssh n0: Permission denied (publickey).")])
    assert finding.fatal and "Permission denied" in finding.text


def test_word_of_the_coordinator_that_leads_counts():
    state = HostsOutcome.of(["a", "b"], ["a", "b", "c"])
    state.on_coordinator_ended("b", 1, leading=False)
    assert state.code is None
    state.on_coordinator_ended("a", 0, leading=True)
    assert state.code == 0


def test_leader_that_was_deposed_does_not_end_the_job():
    state = HostsOutcome.of(["a", "b"], ["a", "b", "c"])
    state.on_coordinator_ended("a", 1, leading=True)
    assert state.code is None
    state.on_coordinator_ended("b", 0, leading=True)
    assert state.code == 0


def test_job_is_over_when_no_coordinator_is_left():
    state = HostsOutcome.of(["a", "b"], ["a", "b", "c"])
    state.on_host_gone("a")
    assert state.code is None
    state.on_host_gone("c")
    state.on_coordinator_ended("b", -9, leading=True)
    assert state.code == 1 and state.reason


def test_job_is_over_some_time_after_the_last_agent(monkeypatch):
    state = HostsOutcome.of(["a"], ["a"])
    now = [0.0]
    monkeypatch.setattr(outcome_module.time, "monotonic", lambda: now[0])
    state.on_agent_ended("a")
    state.tick()
    now[0] = outcome_module.DESERTED_S - 1
    state.on_agent_started("a")
    state.tick()
    state.on_agent_ended("a")
    state.tick()
    now[0] = outcome_module.DESERTED_S + 1
    state.tick()
    assert state.code is None, "it had come back"
    now[0] = 3 * outcome_module.DESERTED_S
    state.tick()
    assert state.code == 1


def test_line_behind_the_greeting_of_a_shell_is_found():
    line = encode_marked("facts", host="a")
    assert decode_marked(b"Welcome to a! " + line) == {"op": "facts", "host": "a"}
    assert decode_marked(b'{"op": "facts"}\n') is None


def test_remote_command_is_quoted_and_options_of_the_user_come_first():
    client = SshClient(
        config="my config", options=("Port=22",), python="/opt/my py/bin/python", variables={"PYTHONPATH": "/a b"}
    )
    command = client.command(Host(name="n", target="n"))
    assert command[:5] == ["ssh", "-F", "my config", "-o", "Port=22"] and "BatchMode=yes" in command
    assert command[-3:-1] == ["--", "n"]
    words = shlex.split(command[-1])
    assert words[:4] == ["exec", "env", "PYTHONPATH=/a b", "/opt/my py/bin/python"]


def test_variables_for_the_machines(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("DEADPOOL_SECRET", "x" * 32)
    monkeypatch.setenv("MINE", "1")
    assert "MINE" not in forwarded([])
    variables = forwarded(["MINE", "OTHER=a=b"])
    assert {"NCCL_DEBUG": "INFO", "MINE": "1", "OTHER": "a=b"}.items() <= variables.items()
    assert "DEADPOOL_SECRET" not in variables
    with pytest.raises(ConfigError, match="NOT_SET"):
        forwarded(["NOT_SET"])


def test_folder_of_a_running_job_keeps_its_secret(tmp_path, monkeypatch):
    folder = RunDir.create(tmp_path / "run")
    secret = folder.make_secret()
    options = SshOptions(client=SshClient(python="python"), folder=tmp_path, fan_out=1, lease_s=1.0, restart=False)

    async def check(self):
        return []

    monkeypatch.setattr(SshJob, "_check", check)
    with contextlib.closing(lock_folder(folder.path, "run_dir")), pytest.raises(ConfigError, match="uses it"):
        asyncio.run(SshJob(JobConfig(), [], options, folder, ["train.py"]).run())
    assert folder.secret_file.read_bytes() == secret


def test_second_job_in_a_folder_has_a_log_of_its_own(tmp_path, monkeypatch):
    folder = RunDir.create(tmp_path / "run")
    folder.events.write_text('{"what": "fault", "cause": "fault-1"}\n')
    folder.announce(Address(host="h", port=1), tls="off")
    options = SshOptions(client=SshClient(python="python"), folder=tmp_path, fan_out=1, lease_s=1.0, restart=False)

    async def check(self):
        return []

    def start(self, checked):
        self._outcome = HostsOutcome.of([], [])
        self._outcome.code = 0
        self._reporter.on_message("a", {"op": "events", "text": '{"what": "joined"}'})

    monkeypatch.setattr(SshJob, "_check", check)
    monkeypatch.setattr(SshJob, "_start", start)
    job = SshJob(JobConfig(), [], options, folder, ["train.py"])
    assert "fault" in folder.events.read_text(), "the machines are checked first, and the folder may be in use"
    assert asyncio.run(job.run()) == 0
    assert [event["what"] for event in read_events(folder.events)] == ["joined"] and not folder.is_known
    assert [event["what"] for event in read_events(folder.path / "earlier-1/events.jsonl")] == ["fault"]


def test_node_of_a_second_job_has_a_folder_of_its_own_and_one_that_comes_back_goes_on_in_it(tmp_path):
    """Without that its coordinator would take over a job that is over, and no node would ever come."""
    folder = RunDir.create(tmp_path / "node")

    def enter(run: str) -> None:
        order = {"node_folder": str(folder.path), "secret": "s", "run": run}
        Daemon(order, cast("socket.socket", None))._console.close()

    enter("first")
    folder.announce(Address(host="h", port=1), tls="off")
    (folder.logs / "a.0.log").write_text("first")
    enter("first")
    assert folder.is_known and not list(folder.path.glob("earlier-*"))
    enter("second")
    assert founds(JobConfig(), folder) and not list(folder.logs.iterdir())
    assert (folder.path / "earlier-1/logs/a.0.log").read_text() == "first"


def test_plan_that_follows_a_loss_is_not_that_of_a_played_recovery():
    """`deadpool ssh` plays a recovery: its Go is the second one of the job, whatever node is lost meanwhile."""
    start = [planned("1.1", "ab", 1.0), {"what": "go", "generation": "1.1", "t": 1.1}]
    played = [fault(2.0, rank=0), planned("1.2", "ab", 2.1), {"what": "go", "generation": "1.2", "t": 2.2}]
    loss = [fault(3.0), planned("1.3", "ac", 3.1)]
    cut_short = [fault(3.2, ranks=[]), planned("1.4", "ac", 3.3)]
    went = [{"what": "go", "generation": "1.4", "t": 3.4}]
    assert plan_after_loss([*start, *played], 0, 0.0) is None
    assert plan_after_loss([*start, *played, *loss, *cut_short], 0, 0.0) is None
    events = [*start, *played, *loss, *cut_short, *went]
    assert plan_after_loss(events, 0, 0.0) == cut_short[1]
    assert plan_after_loss(events, 1, 0.0) is None
    assert plan_after_loss(events, 0, 3.0) is None, "the loss after that one"


def fault(t: float, **fields: Any) -> dict[str, Any]:
    return {"what": "fault", "t": t, "ranks": [0], **fields}


def planned(generation: str, seats: str, t: float) -> dict[str, Any]:
    return {"what": "planned", "generation": generation, "seats": list(seats), "t": t}
