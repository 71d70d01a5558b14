"""Nodes are examined together without a job, in namespaces: each real defect between nodes is found, and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from examined_machine import Examined, needs, needs_faketime, needs_root, shifted
from node_network import LINKS, PORT, NodeNetwork, node_network

import deadpool
from deadpool.host.child_processes import end_with_parent

pytestmark = [needs_root, needs("ip"), needs("nsenter"), pytest.mark.timeout(900)]

OURS, OTHER = deadpool.__version__, "7.7.7"


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeNetwork]:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    monkeypatch.setenv("DEADPOOL_SECRET_FILE", str(secret))
    for name in ("DEADPOOL_SECRET", "DEADPOOL_TLS", "SLURM_JOB_END_TIME", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    with node_network(3) as nodes:
        yield nodes


@pytest.mark.parametrize("tls", ["off", "ephemeral"])
def test_nothing_is_found_at_sound_nodes(three, tls):
    if tls != "off":
        pytest.importorskip("cryptography")
    sound = three.found(more={f"n{number}": {"DEADPOOL_TLS": tls} for number in (1, 2, 3)})
    assert (sound.code, sound.of(), sound.of("could not look")) == (0, [], [])
    assert [node["node"] for node in sound.told["nodes"]] == ["n1", "n2", "n3"]
    pairs = {(link["from"], link["to"]) for link in sound.told["links"]}
    assert len(pairs) == 6 and all(link["gbps"] > 0 for link in sound.told["links"])


# --- ports -----------------------------------------------------------------------------------------------------------


@needs("nft")
def test_firewall_that_lets_no_agent_in(three):
    """One way only: n2 reaches the others, and the one that asks."""
    three["n2"].run(
        "nft add table ip f; nft add chain ip f in '{ type filter hook input priority 0; }'; "
        "nft add rule ip f in 'tcp flags & (syn|ack) == syn drop'"
    )
    found = three.found()
    assert {(each["check"], each["node"]) for each in found.of()} == {("ports", "n1"), ("ports", "n3")}
    assert all("it does not reach node n2 at 10.97.0.2" in each["what"] for each in found.of())


@needs("nft")
@pytest.mark.thorough
def test_asking_node_that_cannot_be_reached(three):
    three["n1"].run(
        "nft add table ip f; nft add chain ip f in '{ type filter hook input priority 0; }'; "
        f"nft add rule ip f in 'ip saddr 10.97.0.3 tcp dport {PORT} drop'"
    )
    told = three.examine_all(wait_s=60.0)
    assert [told[name][0] for name in ("n1", "n2", "n3")] == [1, 1, 1]
    away = Examined(*told["n3"]).only
    assert away["check"] == "ports" and f"10.97.0.1:{PORT} does not answer" in away["what"]
    missed = [each for each in Examined(*told["n1"]).of() if "2 of 3 nodes came" in each["what"]]
    assert missed and "n1, n2" in missed[0]["what"]


# --- bandwidth -------------------------------------------------------------------------------------------------------


@needs("tc")
@pytest.mark.thorough
def test_link_that_is_limited(three):
    """20 Mbit/s for what leaves n2."""
    three["n2"].run("tc qdisc add dev eth0 root tbf rate 20mbit burst 32k latency 50ms")
    found = three.found(besides="")
    assert {each["check"] for each in found.of()} == {"bandwidth"}
    assert [each["node"] for each in found.of()] == ["n2", "n2"], found.told
    assert "bytes pass from n2 to n" in found.of()[0]["what"]


@pytest.mark.thorough
def test_bound_that_no_link_here_reaches(three):
    """Told as a note where it was a processor that held the bytes up, as may well be on this machine."""
    found = Examined(*three.examine_all("--least-gbps", 1000)["n1"])
    told = [each for kind in ("finding", "note") for each in found.of(kind) if each["check"] == "bandwidth"]
    assert len(told) == 6


# --- clocks ----------------------------------------------------------------------------------------------------------


@needs_faketime
@pytest.mark.parametrize("wrong", ["n1", "n2"])
def test_clock_that_is_ahead(three, wrong):
    """Also if it is that of the node that asks. By much more than an answer may take on a busy machine."""
    found = three.found(before={wrong: shifted("+1000s")}).only
    assert (found["check"], found["node"]) == ("clock", wrong)
    ahead = float(found["what"].removeprefix("its clock is ").split()[0])
    assert 900 < ahead < 1100 and "ahead of that of the other nodes" in found["what"]


@needs("unshare")
@pytest.mark.thorough
def test_time_since_boot_is_no_clock(three):
    """A time namespace moves the monotonic clock only, as a machine that was started earlier has another one."""
    assert three.found(before={"n2": ["unshare", "--time", "--monotonic", "1000000"]}).code == 0


# --- versions and secrets --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_another_version_of_deadpool(three, tmp_path):
    copy = tmp_path / "other" / "deadpool"
    shutil.copytree(Path(deadpool.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "__init__.py"
    file.write_text(file.read_text().replace(f'"{OURS}"', f'"{OTHER}"'))
    told = three.examine_all(more={"n2": {"PYTHONPATH": str(copy.parent)}}, wait_s=60.0)
    assert [told[name][0] for name in ("n1", "n2", "n3")] == [1, 1, 1]
    refused = Examined(*told["n2"]).only
    assert refused["check"] == "versions"
    assert f"it runs DeadPool {OURS}, and this process runs DeadPool {OTHER}" in refused["what"]
    seen = [each for each in Examined(*told["n1"]).of() if each["check"] == "versions"]
    assert f"it runs DeadPool {OTHER}, and this process runs DeadPool {OURS}" in seen[0]["what"]
    assert "install the same version on every node" in seen[0]["do"] and "10.97.0.2" in seen[0]["what"]


@pytest.mark.thorough
@pytest.mark.parametrize(("package", "called"), [("torch", "torch"), ("nvidia_nccl_cu12", "NCCL")])
def test_another_version_of_what_all_must_share(three, tmp_path, package, called):
    """Installed where the node's Python looks first."""
    installed = tmp_path / "site" / f"{package}-1.2.3.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2.3\n")
    path = f"{installed.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    found = three.found(more={"n3": {"PYTHONPATH": path}}).only
    assert (found["check"], found["node"]) == ("versions", "n3")
    assert f"it has {called} 1.2.3, and the others have" in found["what"]


@pytest.mark.thorough
def test_another_secret(three, tmp_path):
    other = tmp_path / "other-secret"
    other.write_text("t" * 32)
    other.chmod(0o600)
    told = three.examine_all(more={"n2": {"DEADPOOL_SECRET_FILE": str(other)}}, wait_s=60.0)
    assert [told[name][0] for name in ("n1", "n2", "n3")] == [1, 1, 1]
    assert Examined(*told["n2"]).only["check"] == "secret"
    assert "secret" in Examined(*told["n1"]).checks()


@pytest.mark.thorough
def test_probe_of_the_port_is_no_finding(three):
    """As a load balancer does it: it connects and hangs up, all the time."""
    probe = f"while true; do (exec 3<>/dev/tcp/10.97.0.1/{PORT}) 2>/dev/null; sleep 0.1; done"
    knocking = subprocess.Popen(three["n3"].inside("timeout", "600", "bash", "-c", probe), preexec_fn=end_with_parent())
    try:
        found = three.found()
    finally:
        knocking.terminate()
        knocking.wait()
    assert found.code == 0 and "ports" in found.checks("note")


@pytest.mark.thorough
def test_without_a_secret_it_could_not_look(three, monkeypatch):
    monkeypatch.delenv("DEADPOOL_SECRET_FILE")
    told = three.examine_all(wait_s=5.0)
    assert [code for code, _, _ in told.values()] == [2, 2, 2]
    assert "the job's secret is unknown" in told["n1"][2]


# --- nodes -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_defect_of_one_node_is_told_with_its_name(three):
    found = three.found(before={"n3": ["prlimit", "--nofile=512:512"]}).only
    assert (found["check"], found["node"]) == ("open files", "n3")


@pytest.mark.thorough
def test_node_that_dies_in_the_middle_of_it(three):
    """Killed while it waits for the others: the rest is examined all the same."""
    slow = {"n3": ["timeout", "--signal=KILL", "2", "sh", "-c", "exec sleep 60", "sh"]}
    told = three.examine_all(before=slow, wait_s=60.0)
    assert told["n1"][0] == told["n2"][0] == 1
    assert "2 of 3 nodes came within 60 s: n1, n2" in Examined(*told["n1"], besides=LINKS).only["what"]
