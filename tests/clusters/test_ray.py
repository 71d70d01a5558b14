"""`deadpool.ray.run` on a real Ray cluster whose nodes are machines of their own, as an ordinary user.

Ray is heavy: it is in no extra that the check installs, and these tests are skipped without it. To run them:
pip install 'torch-deadpool[ray]' -c constraints.txt && pytest tests/clusters/test_ray.py
"""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from machines import Site, missing
from ray_site import HEAD, driver, of_the_job, start_cluster, start_ray
from ssh_job import FOLDER, SMALL, WORKLOAD
from waiting import LIMIT_S, wait_until

from deadpool.demo.trial import Results, differences

WITHOUT_RAY = "" if importlib.util.find_spec("ray") else "needs Ray: pip install 'torch-deadpool[ray]'"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing() or WITHOUT_RAY), reason=missing() or WITHOUT_RAY),
]

DRIVER = """
import deadpool.ray

folder = deadpool.ray.run({words}, nodes=2, spares=1, node_timeout_s=10, overhead_budget=0.0)
print("run folder", folder)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "site")
    try:
        site.start(*"abcd")
        site.write_ssh_config("/srv/ssh/config", "abcd")
        start_cluster(site, *"bcd")
        yield site
    finally:
        site.close()


JOB = [WORKLOAD, "--out", f"{FOLDER}/out", "--steps", "100000", "--stop", f"{FOLDER}/stop", *SMALL]


def stop_soon(site: Site) -> None:
    """At a step that no rank has reached."""
    site.path(f"{FOLDER}/stop.draft").write_text(str(steps_done(site) + 50))
    site.path(f"{FOLDER}/stop.draft").rename(site.path(f"{FOLDER}/stop"))


def steps_done(site: Site) -> int:
    path = site.path(f"{FOLDER}/out/rank0.jsonl")
    return len(path.read_text().splitlines()) if path.exists() else 0


def events(site: Site, what: str) -> list[dict]:
    lines = [
        line
        for path in site.path(FOLDER).glob("deadpool-runs/*/events.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [event for event in map(json.loads, lines) if event["what"] == what]


def test_node_dies_and_a_new_one_becomes_a_spare(site, tmp_path):
    """Twice: the second time the ranks go to the agent that Ray has started on a node that was added."""
    console = tmp_path / "console"
    with driver(site, DRIVER.format(words=JOB), console) as process:

        def comes(ready, what):
            wait_until(lambda: ready() or process.poll() is not None, what)
            assert ready(), console.read_text()

        comes(lambda: steps_done(site) > 5 and events(site, "rehearsed"), "a rehearsed spare")
        secret = next(site.path(FOLDER).glob("deadpool-runs/*/secret")).read_text()
        for machine in site.machines.values():
            for member in machine.first.children(recursive=True):
                if "deadpool" in " ".join(member.cmdline()):
                    assert secret not in " ".join(member.cmdline()) + json.dumps(member.environ())
        first = events(site, "planned")[-1]["seats"][1]
        lost = site.machines[first.partition("-")[0]]
        site.cut(lost.name)
        lost.kill()
        comes(lambda: len(events(site, "go")) == 2, "the recovery")
        site.add("e")
        site.write_ssh_config("/srv/ssh/config", [name for name in site.machines if name != lost.name])
        start_ray(site, "e")
        comes(lambda: any(each["trainer"].startswith("e-") for each in events(site, "rehearsed")), "the new spare")
        second = events(site, "planned")[-1]["seats"][0]
        site.machines[second.partition("-")[0]].kill()
        comes(lambda: len(events(site, "go")) == 3, "the second recovery")
        assert events(site, "planned")[-1]["seats"][0].startswith("e-")
        stop_soon(site)
        assert process.wait(LIMIT_S) == 0, console.read_text()
    alive = [name for name in site.machines if name not in (lost.name, second.partition("-")[0])]
    wait_until(lambda: not of_the_job(site, *alive), "the end of all processes")
    out = f"{FOLDER}/reference"
    words = [out if word == f"{FOLDER}/out" else word for word in JOB]  # it stops at the same step, by the same file
    done = site.run(["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", *words], timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stdout
    assert differences(Results.read(site.path(out)), Results.read(site.path(f"{FOLDER}/out"))) == []


def test_nothing_is_left_when_the_driver_is_killed(site, tmp_path):
    with driver(site, DRIVER.format(words=JOB), tmp_path / "console"):
        wait_until(lambda: steps_done(site) > 3, "the job")
        assert len(of_the_job(site, *"abcd")) > 8
        drivers = [p for p in site.machines[HEAD].first.children(recursive=True) if p.cmdline()[-1:] == ["driver.py"]]
        (process,) = [p for p in drivers if psutil.Process(p.pid).name().startswith("python")]
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: not of_the_job(site, *"abcd"), "the end of all processes")
