"""The parent's side: starts the children of a job, replaces one that died, collects what the others computed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import backend_child
import torch.distributed as dist
from backend_child import Scenario
from waiting import LIMIT_S

_context = multiprocessing.get_context("forkserver")


def start_forkserver() -> None:
    """The children are forked from a process that has torch loaded already."""
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    _context.set_forkserver_preload(["backend_child"])
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    _server()  # the first one makes a pipe that stays open for as long as this process lives


@dataclass
class Outcome:
    """What a job computed: per rank the losses by step, and a digest of parameters and optimizer state."""

    losses: dict[int, dict[int, float]] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    exit_codes: list[int | None] = field(default_factory=list)
    resumed_at: int = -1


class JobFailed(Exception):
    """A child failed, or the deadline passed."""


class RedoFailed(JobFailed):
    """It went wrong after every rank was told to resume."""


class Child:
    """One child process and the pipe to it."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=target, args=(*arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        if self.process.is_alive() and self.process.pid is not None:
            with suppress(ProcessLookupError):  # gone, but the forkserver has not said so yet
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.process.close()
        self.pipe.close()


@contextmanager
def children(started: list[Child]) -> Iterator[list[Child]]:
    """Ends them all, whatever happens."""
    try:
        yield started
    finally:
        for child in started:
            child.end()


def expect(child: Child, what: str, deadline: float) -> Any:
    return expect_all([child], what, deadline)[0]


def expect_all(waiting_for: list[Child], what: str, deadline: float) -> list[Any]:
    """What each of them says under the heading `what`; raises as soon as one of them says something else."""
    answers: dict[int, Any] = {}
    while len(answers) < len(waiting_for):
        pipes = {child.pipe: index for index, child in enumerate(waiting_for) if index not in answers}
        ready = wait(list(pipes), max(0.0, deadline - time.monotonic()))
        if not ready:
            silent = [child for index, child in enumerate(waiting_for) if index not in answers]
            _show_stacks(silent)
            raise JobFailed(f"waited for {what!r} of {len(silent)} children until the deadline; their stacks are above")
        for pipe in ready:
            heading, *answer = _receive(pipe)
            if heading == what:
                answers[pipes[pipe]] = answer
            elif heading != "aborted":
                raise JobFailed(f"waited for {what!r}, got {heading!r}: {answer}")
    return [answers[index] for index in range(len(waiting_for))]


def _show_stacks(children: list[Child]) -> None:
    """Ends them: they print where they stand on the standard error that they share with this process."""
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child.process.pid or 0, signal.SIGABRT)
        child.process.join(LIMIT_S)


def _receive(pipe: Any) -> tuple[Any, ...]:
    try:
        return tuple(pipe.recv())
    except (EOFError, ConnectionResetError):
        return ("dead",)


def run_job(
    scenario: Scenario, *, rehearse: bool = True, deadline_s: float = LIMIT_S, redo_s: float = LIMIT_S
) -> Outcome:
    """Runs the job to its end; if the scenario has a victim, a stand-in that was built beside takes its rank."""
    deadline = time.monotonic() + deadline_s
    outcome = Outcome()
    servers = [_server()]
    with children([]) as fleet:
        for rank in range(scenario.world_size):
            fleet.append(Child(backend_child.main, scenario))
            fleet[rank].pipe.send(("start", rank, servers[0].port))
        if scenario.victim >= 0:
            stand_in = Child(backend_child.main, scenario)
            fleet.append(stand_in)
            stand_in.pipe.send(("stand in", scenario.victim, rehearse))
            expect(stand_in, "ready", deadline)
            servers.append(_server())
            _replace_the_victim(scenario, fleet, servers[1].port, outcome, deadline)
        try:
            _collect(fleet, outcome, time.monotonic() + redo_s)
        except JobFailed as failure:
            raise RedoFailed(*failure.args) from failure
    return outcome


def run_in_children(function: Callable[..., Any], ranks: int = 1, deadline_s: float = LIMIT_S) -> list[Any]:
    """What function(rank, port of a store) returns in that many processes."""
    server = _server()
    started = [Child(backend_child.call, function, (rank, server.port)) for rank in range(ranks)]
    with children(started):
        return [answer for (answer,) in expect_all(started, "done", time.monotonic() + deadline_s)]


def _server() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LIMIT_S))


def _replace_the_victim(scenario: Scenario, fleet: list[Child], port: int, outcome: Outcome, deadline: float) -> None:
    """In the fleet's list a rank's index is its number; the stand-in comes last and moves to the victim's place."""
    victim = fleet[scenario.victim]
    expect(victim, "dead", deadline)
    survivors = [child for child in fleet[:-1] if child is not victim]
    for child in survivors:
        child.pipe.send(("abort",))
    reached = [step for (step,) in expect_all(survivors, "unwound", deadline)]
    outcome.resumed_at = min([*reached, scenario.dies_at_step])
    if scenario.resume_step >= 0:
        outcome.resumed_at = scenario.resume_step
    victim.end()
    fleet[scenario.victim] = fleet.pop()
    for child in fleet:
        child.pipe.send(("resume", outcome.resumed_at, port, "generation-2"))


def _collect(fleet: list[Child], outcome: Outcome, deadline: float) -> None:
    for rank, (losses, digest) in enumerate(expect_all(fleet, "done", deadline)):
        outcome.losses[rank], outcome.digests[rank] = losses, digest
    for child in fleet:
        child.pipe.send(("end",))
    for child in fleet:
        wait([child.process.sentinel], max(0.0, deadline - time.monotonic()))
        outcome.exit_codes.append(child.process.exitcode)
