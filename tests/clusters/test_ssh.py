"""`deadpool ssh` against real sshd processes, each on a machine of its own, as an ordinary user."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from machines import ROOT, Site, missing
from ssh_job import FOLDER, SMALL, WORKLOAD, is_idle, ssh_job
from waiting import LIMIT_S, wait_until

from deadpool.demo.trial import Results, differences

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(missing()), reason=missing())]

FOUR = "a\nb rack=r1\nc\nd  # the spare\n"
TWO = "a\nb\n"
QUICK = ("--node-timeout-s", "10", "--overhead-budget", "0")
ROLES_STAY = "--no-rehearse-recovery"  # a recovery that is played would move a rank to the spare
UNTIL_STOPPED = (WORKLOAD, "--out", f"{FOLDER}/out", "--steps", "100000", "--stop", f"{FOLDER}/stop", *SMALL)
WAITING = str(ROOT / "tests/cli/waiting_script.py")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "site")
    try:
        yield site
    finally:
        site.close()


def up(site: Site, *names: str) -> None:
    site.start(*names)
    site.write_ssh_config("/srv/ssh/config", names)


def reference(site: Site, ranks: int) -> Results:
    """The same script under torchrun, until the same step."""
    out = f"{FOLDER}/reference"
    words = [out if word == f"{FOLDER}/out" else word for word in UNTIL_STOPPED]
    command = ["python", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *words]
    done = site.run(command, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stdout
    return Results.read(site.path(out))


def stop_soon(site: Site) -> None:
    """At a step that no rank has reached yet: only now may the job end."""
    site.path(f"{FOLDER}/stop").write_text(str(results(site).newest_step() + 50))


def results(site: Site) -> Results:
    return Results.read(site.path(f"{FOLDER}/out"))


def everything_on(site: Site) -> list[psutil.Process]:
    return [process for machine in site.machines.values() for process in machine.first.children(recursive=True)]


def has_ended(process: psutil.Process) -> bool:
    """Nobody waits for one whose parent was killed: the first process of the site only sleeps."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_machine_dies(site):
    """The quick one: two machines and a spare, one coordinator."""
    up(site, "a", "b", "c")
    with ssh_job(site, "a\nb\nc\n", "--spares", "1", *QUICK, *UNTIL_STOPPED) as job:
        job.await_text("has rehearsed")
        site.machines["b"].kill()
        assert "b" not in job.await_recovery(1)["seats"]
        stop_soon(site)
        assert job.wait() == 0, job.printed()
    assert "FAULT" in job.printed()
    assert differences(reference(site, 2), results(site)) == []
    assert is_idle(site, "a", "c")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_coordinator_is_killed_while_its_folder_is_gone(site):
    """Its machine's daemon hands the secret to the one that it starts again."""
    up(site, "a", "b")
    with ssh_job(site, "a\nb\n", *QUICK, *UNTIL_STOPPED) as job:
        job.await_step(3)
        machine = site.machines["a"]
        (first,) = machine.commands("coordinator")
        (folder,) = {Path(word.partition("=")[2]) for word in first.cmdline() if word.startswith("--run-dir=")}
        there = machine.path(f"{FOLDER}/{folder}")
        there.rename(there.with_name("away"))
        first.kill()
        wait_until(lambda: [each for each in machine.commands("coordinator") if each.pid != first.pid], "another one")
        seen = results(site).newest_step()
        wait_until(lambda: results(site).newest_step() > seen + 20, "more steps")
        assert not there.exists()
        there.with_name("away").rename(there)
        wait_until(lambda: job.events("took_over"), "the coordinator's log")
        stop_soon(site)
        assert job.wait() == 0, job.printed()
    assert differences(reference(site, 2), results(site)) == []
    assert is_idle(site, "a", "b")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_what_died_is_started_again_as_a_spare(site):
    """First an agent, then a whole machine, which comes back with an empty disk; then the ranks go to it."""
    up(site, "a", "b", "c")
    with ssh_job(site, "a\nb\nc\n", "--spares", "1", "--restart", ROLES_STAY, *QUICK, *UNTIL_STOPPED) as job:
        first = job.await_rehearsed("c")
        (agent,) = site.machines["c"].agents()
        agent.kill()
        wait_until(lambda: job.await_rehearsed("c")["t"] > first["t"], "the agent as a spare again")
        site.machines["b"].kill()
        plan = job.await_recovery(1)
        assert plan["seats"] == ["a", "c"]
        site.add("b")
        job.await_text("node b was started again, as a spare")
        job.await_rehearsed("b")
        (agent,) = site.machines["c"].agents()
        agent.kill()
        assert job.await_recovery(1, after=plan["t"])["seats"] == ["a", "b"]
        stop_soon(site)
        assert job.wait() == 0, job.printed()
    assert differences(reference(site, 2), results(site)) == []
    assert is_idle(site, "a", "b", "c")


@pytest.mark.timeout(900)
def test_machines_that_do_not_fit_are_refused_before_anything_starts(site):
    """One has another torch, one cannot be reached, one has no script; the last has a shell that greets."""
    up(site, *"abcd")
    site.path(f"{FOLDER}/train.py").write_text("")
    metadata = next(Path(entry) for entry in importlib.metadata.files("torch") or () if entry.name == "METADATA")
    path = Path(str(importlib.metadata.distribution("torch").locate_file(metadata)))
    other = site.path("/srv/METADATA")
    other.write_text(re.sub(r"^Version: .*$", "Version: 2.12.0", path.read_text(), count=1, flags=re.MULTILINE))
    mount = [
        "nsenter",
        "-t",
        str(site.machines["b"].first.pid),
        "--mount",
        "mount",
        "--bind",
        "/srv/METADATA",
        str(path),
    ]
    subprocess.run(mount, check=True, timeout=LIMIT_S)
    hide = ["nsenter", "-t", str(site.machines["c"].first.pid), "--mount", "mount", "-t", "tmpfs", "tmpfs", FOLDER]
    subprocess.run(hide, check=True, timeout=LIMIT_S)
    site.machines["d"].path("/home/alice/.bashrc").write_text("echo 'welcome to d'; printf 'have fun '\n")
    hosts = "a\nb\nc\nd\nd name=e address=10.87.1.14\nnowhere\n"
    with ssh_job(site, hosts, "train.py") as job:
        assert job.wait() == 2, job.printed()
    told = {line.split(": ")[1]: line for line in job.printed().splitlines() if line.startswith("[deadpool] refused")}
    assert set(told) == {"node b", "node c", "node nowhere"}, job.printed()
    assert "torch 2.12.0, the others have" in told["node b"]
    assert "no script 'train.py'" in told["node c"]
    assert "nowhere" in told["node nowhere"] and "resolve" in told["node nowhere"]
    assert "nothing was started" in job.printed()
    assert is_idle(site, *"abcd")
    assert list(site.path(FOLDER).iterdir()) == [site.path(f"{FOLDER}/train.py")]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_machine_with_coordinator_and_rank_0_dies(site):
    """The power failure of the first machine: nothing says so. The standby takes the job over, the spare the rank."""
    up(site, *"abcd")
    with ssh_job(site, FOUR, "--spares", "1", ROLES_STAY, *QUICK, *UNTIL_STOPPED) as job:
        job.await_rehearsed("d")
        job.await_step(8)
        secret = (job.run_folder() / "secret").read_text()
        watched = [*everything_on(site), job.launcher()]
        assert len(watched) > 12
        for process in watched:
            assert secret not in " ".join(process.cmdline()) + json.dumps(process.environ()), process
        site.cut("a")
        site.machines["a"].kill()
        assert job.await_recovery(0)["seats"] == ["d", "b", "c"]
        stop_soon(site)
        assert job.wait() == 0, job.printed()
    assert differences(reference(site, 3), results(site)) == []
    assert is_idle(site, "b", "c", "d")
    assert [path for name in "bcd" for path in site.machines[name].path("/tmp").glob("*deadpool*")] == []
    assert job.events("fault"), "events come to the launcher's run folder from all coordinators"
    secrets = [path.parent.name for path in site.path(FOLDER).glob("deadpool-runs/*/nodes/*/secret")]
    assert secrets == ["a"], "the machine that died could not remove it"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("SIGINT", marks=pytest.mark.thorough)])
def test_everything_ends_with_the_launcher(site, how):
    up(site, "a", "b")
    site.path(f"{FOLDER}/ranks").mkdir()
    os.chown(site.path(f"{FOLDER}/ranks"), 4711, 4711)
    with ssh_job(site, TWO, WAITING, f"{FOLDER}/ranks") as job:
        wait_until(lambda: len(list(site.path(f"{FOLDER}/ranks").iterdir())) == 2, "both ranks")
        launcher = job.launcher()
        clients = launcher.children()
        assert len(clients) == 2
        launcher.send_signal(getattr(signal, how))
        wait_until(lambda: is_idle(site, "a", "b"), "the end of everything")
        wait_until(lambda: all(map(has_ended, clients)), "the end of the ssh clients")
        assert how == "SIGKILL" or job.wait() == 130


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_launcher_loses_its_connections_for_a_while(site):
    up(site, "a", "b")
    impatient = ("--ssh-option", "ServerAliveInterval=1", "--lease-s", "60")
    with ssh_job(site, TWO, *QUICK, *impatient, *UNTIL_STOPPED) as job:
        job.await_step(3)
        site.cut_launcher()
        job.await_text("the connection to node a is lost")
        job.await_text("the connection to node b is lost")
        done = len(results(site).losses[0])
        wait_until(lambda: len(results(site).losses[0]) > done, "a step without the launcher")
        site.mend_launcher()
        job.await_text("node a is connected again")
        job.await_text("node b is connected again")
        stop_soon(site)
        assert job.wait() == 0, job.printed()
    assert job.events("fault") == []
    assert len(results(site).losses[1]) == len(results(site).losses[0]) > done
    assert is_idle(site, "a", "b")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_machines_end_their_part_when_the_lease_is_over(site):
    up(site, "a", "b")
    site.path(f"{FOLDER}/ranks").mkdir()
    os.chown(site.path(f"{FOLDER}/ranks"), 4711, 4711)
    impatient = ("--ssh-option", "ServerAliveInterval=1", "--lease-s", "4")
    with ssh_job(site, TWO, *impatient, WAITING, f"{FOLDER}/ranks") as job:
        wait_until(lambda: len(list(site.path(f"{FOLDER}/ranks").iterdir())) == 2, "both ranks")
        site.cut_launcher()
        wait_until(lambda: is_idle(site, "a", "b"), "the end of the job")
        assert job.wait() == 1, job.printed()
        assert "no machine with a coordinator is left" in job.printed()
