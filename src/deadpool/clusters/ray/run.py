"""The driver's part of a job on Ray: the coordinator beside it, a placement group, and an actor in each bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deadpool.clusters.ray.agent_actors import AgentActors, Orders
from deadpool.clusters.ray.coordinators import RayCoordinators
from deadpool.clusters.ray.placement import check_driver, placed
from deadpool.config.job_config import resolve
from deadpool.control.console import print_line
from deadpool.control.launch.launcher import new_run_dir
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import JobFailed


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
            Orders(
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
