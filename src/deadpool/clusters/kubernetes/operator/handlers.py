"""The operator's process: kopf tells it which DeadPoolJobs there are, and each has a task that looks after it.

No finalizer is set: jobs can be deleted while the operator is away, and their objects go with them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from deadpool.clusters.kubernetes.job_objects import GROUP, PLURAL, VERSION
from deadpool.errors import ConfigError

if TYPE_CHECKING:
    from deadpool.clusters.kubernetes.operator.cluster import Cluster
    from deadpool.clusters.kubernetes.operator.watch import JobWatch

_MACHINES_S = 2.0


def run(namespaces: list[str]) -> None:
    """Runs the operator until it is told to end."""
    try:
        import kopf
        from lightkube import AsyncClient

        from deadpool.clusters.kubernetes.operator.cluster import Cluster
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'torch-deadpool[kubernetes]'") from error

    registry, operator = kopf.OperatorRegistry(), Operator()

    @kopf.on.login(registry=registry)
    async def login(**arguments: Any) -> Any:
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    @kopf.on.startup(registry=registry)
    async def start(**_: Any) -> None:
        operator.start(Cluster(AsyncClient()))

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await operator.stop()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def changed(type: str | None, body: kopf.Body, **_: Any) -> None:
        content = {"metadata": dict(body["metadata"]), "spec": dict(body.get("spec") or {})}
        content["status"] = dict(body.get("status") or {})
        await operator.on_job(content, deleted=type == "DELETED")

    where: Any = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
    kopf.run(registry=registry, standalone=True, **where)


class Operator:
    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._watches: dict[str, tuple[JobWatch, asyncio.Task[None]]] = {}
        self._machines: asyncio.Task[None] | None = None

    def start(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._machines = asyncio.create_task(self._watch_machines(cluster))

    async def stop(self) -> None:
        tasks = [task for _, task in self._watches.values()] + ([self._machines] if self._machines else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def on_job(self, body: dict[str, Any], *, deleted: bool) -> None:
        """A job was made, changed or deleted, or was there when the operator started."""
        from deadpool.clusters.kubernetes.operator.watch import JobWatch

        assert self._cluster is not None
        uid = body["metadata"]["uid"]
        if deleted:
            if (known := self._watches.pop(uid, None)) is not None:
                known[1].cancel()
        elif uid in self._watches:
            self._watches[uid][0].body = body
        else:
            watch = JobWatch(self._cluster, body)
            self._watches[uid] = (watch, asyncio.create_task(watch.run()))

    async def _watch_machines(self, cluster: Cluster) -> None:
        """Machines that are back may get pods again, also when the job is gone for which they were marked."""
        from deadpool.clusters.kubernetes.operator.watch import api_troubles

        while True:
            with contextlib.suppress(*api_troubles()):
                for node in await cluster.untaint_returned():
                    print(f"[deadpool] machine {node} is back", flush=True)
            await asyncio.sleep(_MACHINES_S)
