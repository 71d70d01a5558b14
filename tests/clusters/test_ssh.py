"""`deadpool ssh` against real sshd processes, each on a machine of its own, as an ordinary user."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from machines import ROOT, Site, missing
from ssh_job import FOLDER, SMALL, WORKLOAD, await_true, is_idle, ssh_job

from deadpool.workload.results import Results, differences

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(missing()), reason=missing())]

FOUR = "a\nb rack=r1\nc\nd  # the spare\n"
TWO = "a\nb\n"
QUICK = ("--node-timeout-s", "3", "--overhead-budget", "0")
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


def reference(site: Site, steps: int, ranks: int) -> Results:
    """The same script under torchrun."""
    out = f"{FOLDER}/reference"
    command = ["python", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), WORKLOAD, "--out", out]
    done = site.run([*command, "--steps", str(steps), *SMALL], timeout_s=90)
    assert done.returncode == 0, done.stdout
    return Results.read(site.path(out))


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


@pytest.mark.timeout(150)
def test_machine_with_coordinator_and_rank_0_dies(site):
    """The power failure of the first machine: nothing says so. The standby takes the job over, the spare the rank."""
    up(site, *"abcd")
    steps = 40
    with ssh_job(
        site, FOUR, "--spares", "1", *QUICK, WORKLOAD, "--out", f"{FOLDER}/out", "--steps", str(steps), *SMALL
    ) as job:
        job.await_text("has rehearsed")
        job.await_step(8)
        secret = (job.run_folder() / "secret").read_text()
        watched = [*everything_on(site), job.launcher()]
        assert len(watched) > 12
        for process in watched:
            assert secret not in " ".join(process.cmdline()) + json.dumps(process.environ()), process
        site.cut("a")
        site.machines["a"].kill()
        assert job.wait() == 0, job.printed()
    assert differences(reference(site, steps, 3), results(site)) == []
    assert is_idle(site, "b", "c", "d")
    assert [path for name in "bcd" for path in site.machines[name].path("/tmp").glob("*deadpool*")] == []
    assert re.search(r"plan: nodes \['d', 'b', 'c'\]", job.printed()), job.printed()
    assert job.events("fault"), "events come to the launcher's run folder from all coordinators"
    secrets = [path.parent.name for path in site.path(FOLDER).glob("deadpool-runs/*/nodes/*/secret")]
    assert secrets == ["a"], "the machine that died could not remove it"


@pytest.mark.timeout(90)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_everything_ends_with_the_launcher(site, how):
    up(site, "a", "b")
    site.path(f"{FOLDER}/ranks").mkdir()
    os.chown(site.path(f"{FOLDER}/ranks"), 4711, 4711)
    with ssh_job(site, TWO, WAITING, f"{FOLDER}/ranks") as job:
        await_true(lambda: len(list(site.path(f"{FOLDER}/ranks").iterdir())) == 2, "both ranks")
        launcher = job.launcher()
        clients = launcher.children()
        assert len(clients) == 2
        launcher.send_signal(getattr(signal, how))
        await_true(lambda: is_idle(site, "a", "b"), "the end of everything", 20)
        await_true(lambda: all(map(has_ended, clients)), "the end of the ssh clients", 20)
        assert how == "SIGKILL" or job.wait() == 130


@pytest.mark.timeout(120)
def test_launcher_loses_its_connections_for_a_while(site):
    up(site, "a", "b")
    steps = 120
    impatient = ("--ssh-option", "ServerAliveInterval=1", "--lease-s", "60")
    with ssh_job(
        site, TWO, *QUICK, *impatient, WORKLOAD, "--out", f"{FOLDER}/out", "--steps", str(steps), *SMALL
    ) as job:
        job.await_step(3)
        site.cut_launcher()
        job.await_text("the connection to node a is lost")
        job.await_text("the connection to node b is lost")
        done = len(results(site).losses[0])
        await_true(lambda: len(results(site).losses[0]) > done, "a step without the launcher")
        site.mend_launcher()
        job.await_text("node a is connected again", 90)
        job.await_text("node b is connected again", 90)
        assert job.wait() == 0, job.printed()
    assert job.events("fault") == []
    assert len(results(site).losses[1]) == steps
    assert is_idle(site, "a", "b")


@pytest.mark.timeout(90)
def test_machines_end_their_part_when_the_lease_is_over(site):
    up(site, "a", "b")
    site.path(f"{FOLDER}/ranks").mkdir()
    os.chown(site.path(f"{FOLDER}/ranks"), 4711, 4711)
    impatient = ("--ssh-option", "ServerAliveInterval=1", "--lease-s", "4")
    with ssh_job(site, TWO, *impatient, WAITING, f"{FOLDER}/ranks") as job:
        await_true(lambda: len(list(site.path(f"{FOLDER}/ranks").iterdir())) == 2, "both ranks")
        site.cut_launcher()
        await_true(lambda: is_idle(site, "a", "b"), "the end of the job", 30)
        assert job.wait() == 1, job.printed()
        assert "no machine with a coordinator is left" in job.printed()
