"""A job on Ray, as its driver starts it.

`run`: the driver's part of a job on Ray: the coordinator beside it, a placement group, and an actor in each bundle.

`check_driver` and `placed`: where the agents of a job may be: one bundle of resources on each of so many Ray nodes.

`RayCoordinators`: the coordinator of a job on Ray: a process beside the driver, with which it ends. One that dies is
started again.

It needs no place in the cluster: a job on Ray ends with its driver in any case, so the coordinator may as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from deadpool.clusters.ray.agent_actors import ActorOrders, AgentActors
from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.config.job_config import JobConfig
from deadpool.config.resolution import resolve
from deadpool.control.console import print_line
from deadpool.control.launch.coordinator_processes import CoordinatorProcesses
from deadpool.control.launch.launcher import new_run_dir
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError, JobFailed
from deadpool.host.child_processes import end_with_parent, interrupts_held
from deadpool.wire.deadline import address_of


def check_driver(interface: str) -> str:
    """The address at which agents reach the driver's machine. Connects to Ray if that was not done yet."""
    try:
        ray: Any = importlib.import_module("ray")
        util: Any = importlib.import_module("ray.util")
    except ImportError as error:
        raise ConfigError("deadpool.ray.run needs Ray: pip install 'torch-deadpool[ray]' on every node") from error
    if util.client.ray.is_connected():
        raise ConfigError(
            "deadpool.ray.run cannot be used over ray://: nodes have to reach the machine of the driver. Run the "
            "driver inside the cluster, as `ray job submit` does"
        )
    if not ray.is_initialized():
        ray.init()
    return address_of(interface) if interface else str(util.get_node_ip_address())


@contextlib.contextmanager
def placed(count: int, bundle: dict[str, float], wait_s: float) -> Iterator[Any]:
    """A placement group on `count` different nodes. Ray finds another node for a bundle whose node dies."""
    ray: Any = importlib.import_module("ray")
    groups: Any = importlib.import_module("ray.util.placement_group")
    group = groups.placement_group([bundle] * count, strategy="STRICT_SPREAD", name="deadpool")
    try:
        if not group.wait(timeout_seconds=wait_s):
            alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            raise ConfigError(
                f"Ray has no {count} different nodes with {bundle} free within {wait_s:g} s; its {len(alive)} nodes "
                f"have {alive}: add nodes, ask for fewer, or give other `resources`"
            )
        yield group
    finally:
        with contextlib.suppress(Exception):  # the cluster may be what has ended
            groups.remove_placement_group(group)


class RayCoordinators:
    def __init__(self, config: JobConfig, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._processes = CoordinatorProcesses(config, run_dir, self._spawn)

    def __enter__(self) -> RayCoordinators:
        try:
            self._processes.start()
        except BaseException:
            self._processes.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.stop()

    @property
    def places(self) -> list[str]:
        return self._processes.places

    def poll(self, *, deserted: bool) -> int | None:
        return self._processes.poll(deserted=deserted)

    def _spawn(
        self, command: list[str], end_signal: signal.Signals, *, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        variables = {**os.environ, SECRET_FILE_VARIABLE: str(self._run_dir.secret_file)}
        variables.pop(SECRET_VARIABLE, None)  # it would be the secret of another job
        with interrupts_held():
            return subprocess.Popen(
                [sys.executable, "-m", "deadpool.cli.main", *command],
                env=variables,
                stdin=subprocess.DEVNULL,
                process_group=0,
                pass_fds=pass_fds,
                preexec_fn=end_with_parent(end_signal),
            )


def run(
    script: str | Path | Sequence[str],
    *,
    nodes: int,
    spares: int = 0,
    resources: Mapping[str, float] | None = None,
    run_dir: str | Path | None = None,
    folder: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    preload: Sequence[str] = (),
    wait_s: float = 300.0,
    **settings: Any,
) -> Path:
    """Trains on `nodes` nodes of the Ray cluster that this driver is connected to, with `spares` more as spares.

    `script` is a path, or a list of words: a path or "-m" and a module, and arguments. Every node needs it, at the same
    place in `folder` (default: the driver's) or in the working_dir of the runtime environment. `resources` is what Ray
    reserves on each node (default: one CPU per trainer), for instance {"CPU": 16, "GPU": 8}. `settings` are those of
    `deadpool run`, such as nproc_per_node=8. Waits `wait_s` seconds at most for enough nodes.

    When a node dies, a spare takes its ranks, and Ray starts a new agent, a spare, as soon as it has a node for it.
    When the driver ends, however it ends, everything of the job ends.

    Returns the run folder, which is on the driver's machine. Raises JobFailed if the job failed.
    """
    words = [str(script)] if isinstance(script, (str, Path)) else [str(word) for word in script]
    config = resolve({"nodes": nodes, "spares": spares, **settings})
    address = check_driver(config.interface)
    config = dataclasses.replace(config, host=address)
    bundle = dict(resources) if resources is not None else {"CPU": float(config.nproc_per_node)}
    home = RunDir.create(Path(run_dir)) if run_dir is not None else new_run_dir()
    print_line(f"[deadpool] run folder: {home.path}")
    with (
        placed(nodes + spares, bundle, wait_s) as group,
        RayCoordinators(config, home) as coordinators,
        AgentActors(
            group,
            bundle,
            ActorOrders(
                config=config,
                script=words,
                places=coordinators.places,
                run_dir=home,
                folder=str(Path(folder).absolute() if folder is not None else Path.cwd()),
                environment=dict(environment or {}),
                preload=tuple(preload),
            ),
        ) as actors,
    ):
        code = _wait(coordinators, actors)
    if code:
        raise JobFailed(f"the job on Ray ended with code {code}: read what the coordinator printed, and {home.events}")
    return home.path


def _wait(coordinators: RayCoordinators, actors: AgentActors) -> int:
    while (code := coordinators.poll(deserted=False)) is None:
        actors.tend()
        if actors.all_failed:
            print_line("[deadpool] every agent has ended with an error, again and again: read what they printed")
            return 1
    return code
