"""The actors that own the agents of a job on Ray.

`AgentActor`: the actor that owns the agent of one Ray node. This module does not need Ray: the driver makes an actor
of the class.

Ray calls the methods of an actor on its main thread, which lives as long as the process: the agent ends with it.

`Orders` and `AgentActors`: the actors of a job, one per bundle. Ray restarts one whose process or node dies; the
driver then tells it to start a new agent, as a spare. The secret goes with that call, from process to process: it is
in nothing that Ray stores.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from deadpool.clusters.commands import agent_words
from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.config.job_config import JobConfig
from deadpool.control.console import print_line
from deadpool.control.launch.run_dir import RunDir
from deadpool.events.event import read_events
from deadpool.host.child_processes import end_with_parent

_PROCESS_END_S = 3.0


class AgentActor:
    """A fresh process of it, on this node or another, has started nothing: the driver then tells it to start again."""

    def __init__(self) -> None:
        self._incarnation = secrets.token_hex(4)
        self._process: subprocess.Popen[bytes] | None = None
        self._secret: int | None = None

    def describe(self) -> dict[str, Any]:
        return {
            "incarnation": self._incarnation,
            "host": socket.gethostname(),
            "started": self._process is not None,
            "code": self._process.poll() if self._process is not None else None,
        }

    def start(self, words: list[str], secret: str, folder: str, environment: dict[str, str]) -> None:
        """The words of `deadpool agent`. The folder is used where it is there; a runtime environment has its own."""
        if self._secret is None:
            self._secret = _in_memory(secret)
        variables = {**os.environ, **environment, SECRET_FILE_VARIABLE: f"/proc/{os.getpid()}/fd/{self._secret}"}
        variables.pop(SECRET_VARIABLE, None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deadpool.cli.main", *words],
            cwd=folder if Path(folder).is_dir() else None,
            env=variables,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=end_with_parent(),
        )

    def end(self) -> None:
        """Ray ends the actor afterwards. An agent that does not go by itself is killed, with all of its group."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_PROCESS_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _in_memory(secret: str) -> int:
    """A file without a name, which only processes of this user can open, and which is gone with this process."""
    descriptor = os.memfd_create("deadpool-secret", os.MFD_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, secret.encode())
    return descriptor


_POLL_S = 0.5
_END_S = 6.0
_MOST_STARTS = 3
"""The most starts of an agent in one process of its actor: one that ends with an error each time will do so again."""
_RESTART_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOrders:
    config: JobConfig
    script: Sequence[str]
    places: Sequence[str]
    run_dir: RunDir
    folder: str
    environment: Mapping[str, str]
    preload: Sequence[str]


@dataclass(slots=True)
class _Actor:
    handle: Any
    index: int
    asked: Any = None  # the reference of a question that has no answer yet
    started: dict[str, int] = field(default_factory=dict)  # starts by incarnation
    left: bool = False  # its agent has left the job on purpose
    failed: bool = False  # its agent has ended with an error too often
    started_at: float = 0.0


class AgentActors:
    def __init__(self, group: Any, bundle: dict[str, float], orders: ActorOrders) -> None:
        self._group, self._bundle, self._orders = group, bundle, orders
        self._actors: list[_Actor] = []

    def __enter__(self) -> AgentActors:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        others = {name: count for name, count in self._bundle.items() if name not in ("CPU", "GPU", "memory")}
        for index in range(self._group.bundle_count):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            options = {
                "num_cpus": self._bundle.get("CPU", 0),
                "num_gpus": self._bundle.get("GPU", 0),
                "resources": others,
                "max_restarts": -1,
                "scheduling_strategy": strategy,
            }
            self._actors.append(_Actor(ray.remote(AgentActor).options(**options).remote(), index))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Agents of a job that is over end by themselves; each gets a moment for that, then Ray ends its actor."""
        import ray

        with contextlib.suppress(Exception):  # the cluster may be what has ended
            ray.wait(
                [actor.handle.end.remote() for actor in self._actors], num_returns=len(self._actors), timeout=_END_S
            )
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor.handle)

    @property
    def all_failed(self) -> bool:
        return all(actor.failed or actor.left for actor in self._actors) and any(a.failed for a in self._actors)

    def tend(self) -> None:
        """Asks every actor for half a second what it does, and tells those that have started nothing to start."""
        import ray

        for actor in self._actors:
            if actor.asked is None:
                actor.asked = actor.handle.describe.remote()
        deadline = time.monotonic() + _POLL_S
        ray.wait([actor.asked for actor in self._actors], num_returns=len(self._actors), timeout=_POLL_S)
        for actor in self._actors:
            self._hear(actor)
        time.sleep(max(0.0, deadline - time.monotonic()))

    def _hear(self, actor: _Actor) -> None:
        import ray
        from ray.exceptions import RayActorError

        if not ray.wait([actor.asked], timeout=0)[0]:
            return
        asked, actor.asked = actor.asked, None
        with contextlib.suppress(RayActorError):  # its node is gone; Ray looks for another one
            self._on_answer(actor, ray.get(asked))

    def _on_answer(self, actor: _Actor, told: dict[str, Any]) -> None:
        starts = actor.started.get(told["incarnation"], 0)
        actor.failed = starts >= _MOST_STARTS and told["code"] not in (None, 0)
        is_early = time.monotonic() < actor.started_at + _RESTART_S
        if actor.left or actor.failed or is_early or (told["started"] and told["code"] is None):
            return
        if told["code"] == 0:
            actor.left = True  # it was drained, or the job is over
            return
        actor.started[told["incarnation"]] = starts + 1
        actor.started_at = time.monotonic()
        self._start(actor, told)

    def _start(self, actor: _Actor, told: dict[str, Any]) -> None:
        orders = self._orders
        again = sum(actor.started.values()) > 1
        spare = actor.index >= orders.config.nodes or (again and self._has_begun())
        name = f"{told['host']}-{told['incarnation']}"
        words = agent_words(
            orders.config,
            orders.script,
            name=name,
            host=None,
            places=orders.places,
            logs=orders.run_dir.path / "nodes" / name / "logs",
            spare=spare,
            preload=orders.preload,
        )
        if again:
            print_line(f"[deadpool] Ray has a node for agent {actor.index} again: {name} joins as a spare")
        secret = orders.run_dir.secret_file.read_text()
        actor.handle.start.remote(words, secret, orders.folder, dict(orders.environment))

    def _has_begun(self) -> bool:
        return any(event["what"] == "go" for event in read_events(self._orders.run_dir.events))
