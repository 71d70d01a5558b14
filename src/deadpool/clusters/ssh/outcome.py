"""How a job on hosts ends, and what the user sees of it.

`HostsOutcome`: when a job on hosts is over, and with which exit code, from what is known of its coordinators
and agents.

`Reporter`: what the user sees of a job on hosts: lines, progress, and a run folder on this machine for other
commands.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from deadpool.control.console import print_line
from deadpool.control.launch.run_dir import RunDir
from deadpool.host.private_files import open_private

if TYPE_CHECKING:
    from rich.table import Table


DESERTED_S = 10.0
"""The time without any agent after which the job is over: of several coordinators none can know it."""


@dataclass(slots=True)
class HostsOutcome:
    """`coordinators` and `agents` are names of nodes. A host that is gone has neither."""

    coordinators: set[str]
    agents: set[str]
    code: int | None = None
    reason: str = ""
    _last_code: int = 1
    _deserted_at: float | None = field(default=None)

    @classmethod
    def of(cls, coordinators: Sequence[str], agents: Sequence[str]) -> HostsOutcome:
        return cls(coordinators=set(coordinators), agents=set(agents))

    def on_coordinator_ended(self, node: str, code: int, *, leading: bool) -> None:
        """The word of the one that leads counts. One that failed may have been deposed: the others are asked, too."""
        self.coordinators.discard(node)
        if leading and code == 0:
            self._settle(0, "")
        elif leading:
            self._last_code = code if code > 0 else 1
        self._check("the job failed" if leading else "no coordinator is left")

    def on_coordinator_started(self, node: str) -> None:
        self.coordinators.add(node)

    def on_agent_ended(self, node: str) -> None:
        self.agents.discard(node)

    def on_agent_started(self, node: str) -> None:
        self.agents.add(node)

    def on_host_gone(self, node: str) -> None:
        self.agents.discard(node)
        if node in self.coordinators:
            self.coordinators.discard(node)
            self._check("no machine with a coordinator is left")

    def tick(self) -> None:
        if self.agents or self.code is not None:
            self._deserted_at = None
        elif self._deserted_at is None:
            self._deserted_at = time.monotonic()
        elif time.monotonic() > self._deserted_at + DESERTED_S:
            self._settle(self._last_code, "no agent is left")

    def _check(self, reason: str) -> None:
        if not self.coordinators:
            self._settle(self._last_code, reason)

    def _settle(self, code: int, reason: str) -> None:
        if self.code is None:
            self.code, self.reason = code, reason


_PROGRESS_S = 15.0


class Reporter:
    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._events: IO[str] | None = None
        self._phase, self._shown_at, self._step = "", 0.0, -1

    def show(self, table: Table) -> None:
        from rich.console import Console

        Console().print(table)

    def begin(self) -> None:
        """The folder is this job's now."""
        self._events = open_private(self._run_dir.events, "a")

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def on_message(self, node: str, message: dict[str, Any]) -> None:
        match message:
            case {"op": "line", "text": text}:
                print_line(text)
            case {"op": "lines_lost", "count": count}:
                print_line(f"[deadpool] {count} lines of node {node} are not shown: they are in its console.log")
            case {"op": "events", "text": text} if self._events is not None:
                self._events.write(f"{text}\n")
                self._events.flush()
            case {"op": "announced", "job": job}:
                self._announce(job)
            case {"op": "progress"}:
                self._show_progress(message)
            case {"op": "exit", "what": what, "code": code} if code:
                print_line(f"[deadpool] the {what} of node {node} ended with code {code}")
            case {"op": "connection_lost", "reason": reason}:
                print_line(f"[deadpool] the connection to node {node} is lost ({reason}): what runs there goes on")
            case {"op": "connected_again"}:
                print_line(f"[deadpool] node {node} is connected again")
            case {"op": "started_again"}:
                print_line(f"[deadpool] node {node} was started again, as a spare")
            case {"op": "given_up", "reason": reason}:
                print_line(f"[deadpool] node {node} is given up: {reason}")

    def _announce(self, job: dict[str, Any]) -> None:
        """Writes job.json so that `deadpool status` works here, too, where the coordinator can be reached from here."""
        draft = self._run_dir.path / "job.json.draft"
        with open_private(draft, "w") as file:
            json.dump(job, file)
        draft.replace(self._run_dir.path / "job.json")

    def _show_progress(self, told: dict[str, Any]) -> None:
        now = time.monotonic()
        is_due = now > self._shown_at + _PROGRESS_S and told["step"] != self._step
        if told["phase"] == self._phase and not is_due:
            return
        self._phase, self._shown_at, self._step = told["phase"], now, told["step"]
        protection = (
            f"version {told['watermark']} is committed" if told["watermark"] is not None else "not protected yet"
        )
        spares = f"{told['spares']} spare{'' if told['spares'] == 1 else 's'}"
        print_line(f"[deadpool] {told['phase']} at step {told['step']}, {protection}, {spares}")
