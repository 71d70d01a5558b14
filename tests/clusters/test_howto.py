"""The pages "your first protected job over ssh" and "on Ray", followed to the letter on machines of their own."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import ROOT, USER_ID, Site, end, missing
from ray_site import on, start_cluster
from ssh_job import CONFIG, FOLDER
from waiting import LIMIT_S, wait_until

HOME = "/home/alice"
STEPS = 1500
WITHOUT_RAY = "" if importlib.util.find_spec("ray") else "needs Ray: pip install 'torch-deadpool[ray]'"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "site")
    try:
        yield site
    finally:
        site.close()


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [found for kind, found in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S) if kind == language]


def tutorial_script() -> str:
    script = blocks("tutorial.md", "python")[0]
    assert "job.steps(2000)" in script
    return script.replace("job.steps(2000)", f"job.steps({STEPS})")


def write(site: Site, path: str, text: str) -> None:
    target = site.path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    for each in (target, target.parent):
        os.chown(each, USER_ID, USER_ID)


def end_states(text: str) -> list[str]:
    return sorted(set(re.findall(r"rank \d ends with state [0-9a-f]+", text)))


def torchrun(site: Site, ranks: int, folder: str) -> list[str]:
    command = ["python", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "train.py"]
    done = site.run(command, timeout_s=LIMIT_S, cwd=folder)
    assert done.returncode == 0, done.stdout
    return end_states(done.stdout)


def started(site: Site, words: list[str], console: Path, cwd: str) -> subprocess.Popen[str]:
    with console.open("w") as file:
        return site.popen(words, cwd=cwd, stdout=file, stderr=subprocess.STDOUT)


def test_first_job_over_ssh(site, tmp_path):
    nodes = ["node-a", "node-b", "node-c", "node-d"]
    site.start(*nodes)
    site.path(f"{HOME}/.ssh").mkdir()
    site.write_ssh_config(f"{HOME}/.ssh/config", nodes)
    write(site, f"{HOME}/job/train.py", tutorial_script())
    (hosts,) = blocks("howto/ssh.md", "text")
    write(site, f"{HOME}/job/hosts.txt", hosts)
    copy, check, job, look = blocks("howto/ssh.md", "")
    done = site.run(["bash", "-ec", f"{copy}\n{check}"], timeout_s=LIMIT_S)
    assert done.returncode == 0 and done.stdout.count("alice@node-") == 4, done.stdout
    console = tmp_path / "console"
    process = started(site, ["bash", "-ec", f"cd job\n{job}"], console, HOME)
    try:
        wait_until(lambda: "has rehearsed" in console.read_text() or process.poll() is not None, "the job")
        assert process.poll() is None, console.read_text()
        site.cut("node-b")
        site.machines["node-b"].kill()
        assert process.wait(LIMIT_S) == 0, console.read_text()
    finally:
        end(process)
    assert "FAULT" in console.read_text()
    expected = torchrun(site, 3, f"{HOME}/job")
    assert len(expected) == 3 and end_states(console.read_text()) == expected
    told = site.run(["bash", "-ec", f"cd job\n{look}"])
    assert told.returncode == 0 and "node node-b" in told.stdout, told.stdout


@pytest.mark.skipif(bool(WITHOUT_RAY), reason=WITHOUT_RAY)
def test_first_job_on_ray(site, tmp_path):
    site.start(*"abcd")
    site.write_ssh_config(CONFIG, "abcd")
    start_cluster(site, *"bcd")
    write(site, f"{FOLDER}/train.py", tutorial_script())
    driver, _ = blocks("howto/ray.md", "python")
    write(site, f"{FOLDER}/driver.py", driver)
    _, command = blocks("howto/ray.md", "")  # the first one installs
    assert command == "python driver.py\n"
    console = tmp_path / "console"
    process = started(site, on("a", *command.split()), console, HOME)
    try:
        wait_until(lambda: "has rehearsed" in console.read_text() or process.poll() is not None, "the job")
        assert process.poll() is None, console.read_text()
        site.machines[re.findall(r"plan: nodes \['(\w)-", console.read_text())[0]].kill()
        assert process.wait(LIMIT_S) == 0, console.read_text()
    finally:
        end(process)
    assert "FAULT" in console.read_text()
    expected = torchrun(site, 2, FOLDER)
    assert len(expected) == 2 and end_states(console.read_text()) == expected
