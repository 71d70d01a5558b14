"""`deadpool ssh` as a user calls it, at a place that is none of the machines."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from machines import ROOT, Site, end
from waiting import LIMIT_S, wait_until

WORKLOAD = str(ROOT / "lab/deadpool_lab/workload/train.py")
SMALL = ("--layers", "2", "--width", "64", "--sequence", "32", "--vocabulary", "256", "--dropout", "0.1")
FOLDER = "/srv/shared"
CONFIG = "/srv/ssh/config"
COMMAND = [sys.executable, "-m", "deadpool.cli.main"]


def is_idle(site: Site, *names: str) -> bool:
    return not any(site.machines[name].processes() for name in names)


@dataclass(slots=True)
class SshRun:
    site: Site
    process: subprocess.Popen[str]
    console: Path

    def printed(self) -> str:
        return self.console.read_text(errors="replace")

    def await_text(self, text: str) -> None:
        def is_there() -> bool:
            assert text in self.printed() or self.process.poll() is None, self.printed()
            return text in self.printed()

        wait_until(is_there, lambda: f"{text!r} in\n{self.printed()}")

    def await_step(self, step: int) -> None:
        results = self.site.path(f"{FOLDER}/out/rank0.jsonl")

        def is_done() -> bool:
            assert self.process.poll() is None, self.printed()
            return results.exists() and len(results.read_text().splitlines()) >= step

        wait_until(is_done, f"step {step}")

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def run_folder(self) -> Path:
        """On the launcher's side."""
        (folder,) = self.site.path("/home/alice/deadpool-runs").iterdir()
        return folder

    def events(self, what: str) -> list[dict[str, Any]]:
        lines = (self.run_folder() / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["what"] == what]

    def launcher(self) -> psutil.Process:
        """The command itself: it was started through programs that enter the site."""
        process = psutil.Process(self.process.pid)
        while COMMAND[1:] != process.cmdline()[1:3]:
            (process,) = process.children()
        return process


@contextlib.contextmanager
def ssh_job(site: Site, hosts: str, *words: str) -> Iterator[SshRun]:
    site.path("/home/alice/hosts.txt").write_text(hosts)
    console = site.folder / "console"
    with console.open("w") as file:
        command = [*COMMAND, "ssh", "--hosts", "hosts.txt", "--folder", FOLDER, "--ssh-config", CONFIG, *words]
        process = site.popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield SshRun(site, process, console)
    finally:
        end(process)
