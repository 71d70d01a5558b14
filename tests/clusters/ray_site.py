"""A Ray cluster on the machines of a site: the head on the first one, one CPU on each of the others."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from machines import ROOT, Site, end
from ssh_job import CONFIG, FOLDER

HEAD = "a"
_VARIABLES = {
    "PYTHONPATH": f"{ROOT}/src:{ROOT}/lab",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # A dead node is noticed after about 2 s: a new agent then comes soon. By default it takes some 10 s.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


def on(machine: str, *words: str) -> list[str]:
    """A command line for that machine."""
    variables = " ".join(f"{name}={value}" for name, value in _VARIABLES.items())
    path = f"{Path(sys.executable).parent}:$PATH"
    return ["ssh", "-F", CONFIG, machine, f"cd {FOLDER} && exec env {variables} PATH={path} {shlex.join(words)}"]


def start_ray(site: Site, machine: str) -> None:
    where = ("--head", "--port=6379", "--include-dashboard=false", "--num-cpus=0")
    if machine != HEAD:
        where = (f"--address={site.machines[HEAD].address}:6379", "--num-cpus=1")
    own = (f"--node-ip-address={site.machines[machine].address}", "--object-store-memory=100000000")
    done = site.run(on(machine, "ray", "start", "--disable-usage-stats", *where, *own), timeout_s=600)
    assert done.returncode == 0, done.stdout


def start_cluster(site: Site, *machines: str) -> None:
    start_ray(site, HEAD)
    with ThreadPoolExecutor(len(machines)) as pool:
        for done in [pool.submit(start_ray, site, machine) for machine in machines]:
            done.result()


@contextlib.contextmanager
def driver(site: Site, script: str, console: Path) -> Iterator[subprocess.Popen[str]]:
    """On the machine of the head, as `ray job submit` would start it."""
    site.path(f"{FOLDER}/driver.py").write_text(script)
    with console.open("w") as file:
        process = site.popen(on(HEAD, "python", "driver.py"), stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        end(process)


def of_the_job(site: Site, *machines: str) -> list[str]:
    """Its processes; Ray's own ones stay."""
    return [words for name in machines for words in site.machines[name].processes() if "deadpool" in words]
