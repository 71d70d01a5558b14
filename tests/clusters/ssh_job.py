"""`deadpool ssh` as a user calls it, at a place that is none of the machines."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from machines import ROOT, Site, end
from waiting import LIMIT_S, wait_until

from deadpool.events.event import read_events

WORKLOAD = str(ROOT / "lab/deadpool_lab/workload/train.py")
SMALL = ("--layers", "2", "--width", "64", "--sequence", "32", "--vocabulary", "256", "--dropout", "0.1")
FOLDER = "/srv/shared"
CONFIG = "/srv/ssh/config"
COMMAND = [sys.executable, "-m", "deadpool.cli.main"]


def is_idle(site: Site, *names: str) -> bool:
    return not any(site.machines[name].processes() for name in names)


def plan_after_loss(events: Sequence[dict[str, Any]], rank: int, after: float) -> dict[str, Any] | None:
    """The plan of the first generation that has gone since the node with this rank was lost; None: none has gone yet.
    Where only a rank ended, as in a recovery that is played, its fault names the rank."""
    lost = [e["t"] for e in events if e["what"] == "fault" and "rank" not in e and rank in e["ranks"]]
    lost_at = min((t for t in lost if t > after), default=None)
    if lost_at is None:
        return None
    went = next((e["generation"] for e in events if e["what"] == "go" and e["t"] > lost_at), None)
    return next((e for e in events if e["what"] == "planned" and e["generation"] == went), None)


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
        return [event for event in self.all_events() if event["what"] == what]

    def all_events(self) -> list[dict[str, Any]]:
        """By time: they come from all coordinators."""
        return read_events(self.run_folder() / "events.jsonl")

    def await_rehearsed(self, node: str) -> dict[str, Any]:
        """A spare that this node became since it joined last has rehearsed."""
        self.await_text("has rehearsed")  # by now there is a run folder

        def rehearsed() -> dict[str, Any] | None:
            joined = [event["t"] for event in self.events("joined") if event["node"] == node]
            own = [event for event in self.events("rehearsed") if event["trainer"].startswith(f"{node}.")]
            return next((event for event in own if joined and event["t"] >= joined[-1]), None)

        return wait_until(rehearsed, f"a spare at {node}") or {}

    def await_recovery(self, rank: int, *, after: float = 0.0) -> dict[str, Any]:
        """The plan by which the job went on without the node that had this rank. A recovery that is played has a plan
        too, so that it is not the number of plans that tells."""
        return wait_until(lambda: plan_after_loss(self.all_events(), rank, after), "the recovery") or {}

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
