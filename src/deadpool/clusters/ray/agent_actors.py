"""The actors of a job, one per bundle. Ray restarts one whose process or node dies; the driver then tells it to start a
new agent, as a spare. The secret goes with that call, from process to process: it is in nothing that Ray stores."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from deadpool.clusters.commands import agent_words
from deadpool.clusters.ray.agent_actor import AgentActor
from deadpool.config.job_config import JobConfig
from deadpool.control.console import print_line
from deadpool.control.launch.run_dir import RunDir
from deadpool.events.event import read_events

_POLL_S = 0.5
_END_S = 6.0
_MOST_STARTS = 3
"""The most starts of an agent in one process of its actor: one that ends with an error each time will do so again."""
_RESTART_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
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
    def __init__(self, group: Any, bundle: dict[str, float], orders: Orders) -> None:
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
