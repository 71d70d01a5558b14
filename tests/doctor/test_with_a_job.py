"""The doctor with a real coordinator and real agents: what they suffer from, and a machine that wants to join."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from examined_machine import examine, needs, needs_faketime, needs_root, shifted
from node_network import Node, node_network
from waiting import LIMIT_S, wait_until

import deadpool
from deadpool.host.child_processes import end_with_parent

pytestmark = pytest.mark.timeout(900)

DEADPOOL = [sys.executable, "-m", "deadpool.cli.main"]
SCRIPT = "import threading; threading.Event().wait()"


@pytest.fixture(autouse=True)
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "handed-out"
    file.write_text("s" * 32)
    file.chmod(0o600)
    monkeypatch.setenv("DEADPOOL_SECRET_FILE", str(file))
    for name in ("DEADPOOL_SECRET", "DEADPOOL_TLS", "SLURM_JOB_END_TIME", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


class Job:
    def __init__(self, folder: Path, port: int, host: str = "127.0.0.1") -> None:
        self.folder, self.place, self._host, self._port = folder, f"{host}:{port}", host, port
        self._life = contextlib.ExitStack()
        (folder / "wait.py").write_text(SCRIPT)

    def start(self, nodes: int, *, before: list[str] | None = None) -> None:
        words = ["--nodes", nodes, "--run-dir", self.folder / "run", "--host", self._host, "--port", self._port]
        self._spawn([*(before or []), *DEADPOOL, "coordinator", *words])

    def agent(self, name: str, *, before: list[str] | None = None, more: dict[str, str] | None = None) -> None:
        words = ["--join", self.place, "--name", name, "--logs", self.folder / name, self.folder / "wait.py"]
        self._spawn([*(before or []), *DEADPOOL, "agent", *words], more)

    def await_nodes(self, count: int, before: list[str] | None = None) -> None:
        command = [*(before or []), *DEADPOOL, "status", self.folder / "run", "--json"]

        def are_there() -> bool:
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_S)
            return done.returncode == 0 and len(json.loads(done.stdout)["nodes"]) == count

        wait_until(are_there, lambda: f"{count} nodes in\n{(self.folder / 'log').read_text()}\n")

    def _spawn(self, command: list[object], more: dict[str, str] | None = None) -> None:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                env={**os.environ, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent(),
            )
        self._life.callback(process.wait)
        self._life.callback(process.kill)

    def close(self) -> None:
        self._life.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with contextlib.closing(Job(tmp_path, port)) as made:
        yield made


@pytest.mark.thorough
def test_sound_job_and_sound_newcomer(job):
    job.start(2)
    for name in ("a", "b"):
        job.agent(name)
    job.await_nodes(2)
    beside = examine("--agents", "--run-dir", job.folder / "run")
    assert beside.code == 0, beside.told["findings"]
    assert [node["node"] for node in beside.told["nodes"]] == ["a", "b"]
    joined = examine("--join", job.place, "--name", "new")
    assert joined.code == 0, joined.told["findings"]
    assert [node["node"] for node in joined.told["nodes"]] == ["new", "a", "b"]


@needs("prlimit")
@needs_faketime
@pytest.mark.thorough
def test_agents_find_what_they_themselves_suffer_from(job):
    """Their own limits, clock and allocation, not those of the machine that asks."""
    job.start(3)
    job.agent("a")
    job.agent("b", before=["prlimit", "--nofile=800:800"])
    job.agent("c", before=shifted("-30s"), more={"SLURM_JOB_END_TIME": str(int(time.time()) + 100)})
    job.await_nodes(3)
    beside = examine("--agents", "--run-dir", job.folder / "run")
    found = {(each["node"], each["check"]) for each in beside.of()}
    assert beside.code == 1
    assert found == {("b", "open files"), ("c", "clock"), ("c", "time limit")}, beside.told["findings"]
    (clock,) = [each for each in beside.of() if each["check"] == "clock"]
    assert "behind that of the coordinator" in clock["what"]


@pytest.mark.thorough
def test_no_coordinator_and_another_secret(job, tmp_path, monkeypatch):
    away = examine("--join", job.place)
    assert away.only["check"] == "ports" and job.place in away.only["what"]
    job.start(1)
    job.agent("a")
    job.await_nodes(1)
    other = tmp_path / "other"
    other.write_text("t" * 32)
    other.chmod(0o600)
    monkeypatch.setenv("DEADPOOL_SECRET_FILE", str(other))
    assert examine("--join", job.place).only["check"] == "secret"


@pytest.mark.thorough
def test_joining_machine_of_another_version(job, tmp_path):
    copy = tmp_path / "other" / "deadpool"
    shutil.copytree(Path(deadpool.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "__init__.py"
    file.write_text(file.read_text().replace(f'"{deadpool.__version__}"', '"7.7.7"'))
    job.start(1)
    job.agent("a")
    job.await_nodes(1)
    found = examine("--join", job.place, more={"PYTHONPATH": str(copy.parent)}).only
    assert found["check"] == "versions"
    assert f"it runs DeadPool {deadpool.__version__}, and this process runs DeadPool 7.7.7" in found["what"]


def test_folder_without_a_job_could_not_be_looked_at(tmp_path):
    command = [*DEADPOOL, "doctor", "--agents", "--run-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2 and "is not the run folder of a job" in done.stderr


@needs_root
@needs("ip")
@needs("nft")
@pytest.mark.thorough
def test_joining_machine_that_the_agents_do_not_reach_and_one_that_does_not_reach_them(tmp_path):
    """Both ways: n3 wants to join the job of n1 and n2."""
    closed = (
        "nft add table ip f; nft add chain ip f in '{ type filter hook input priority 0; }'; "
        "nft add rule ip f in 'tcp flags & (syn|ack) == syn drop'"
    )
    with node_network(3) as nodes:
        n1, n2, n3 = nodes.nodes
        with contextlib.closing(Job(tmp_path, 29400, n1.host)) as job:
            job.start(2, before=n1.inside())
            for node in (n1, n2):
                job.agent(node.name, before=node.inside())
            job.await_nodes(2, before=n1.inside())
            assert join(n3, job).code == 0
            n3.run(closed)
            inward = join(n3, job)
            assert {(each["check"], each["node"]) for each in inward.of()} == {("ports", "n1"), ("ports", "n2")}
            assert all("it does not reach node n3" in each["what"] for each in inward.of())
            n3.run("nft flush ruleset")
            n2.run(closed)
            outward = join(n3, job)
            assert {(each["node"], each["what"]) for each in outward.of()} == {
                ("n1", "it does not reach node n2"),
                ("n3", "it does not reach node n2"),
            }


def join(node: Node, job: Job):
    return examine("--join", job.place, "--name", node.name, before=node.inside())
