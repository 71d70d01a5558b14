"""The operator's process: kopf tells it which DeadPoolJobs there are, and each has a task that looks after it.

Such a task makes what is missing, shows how the job is, and has pods on machines that are lost or about to go replaced,
again and again. No finalizer is set: jobs can be deleted while the operator is away, and their objects go with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from typing import TYPE_CHECKING, Any

from deadpool.clusters.kubernetes.job_objects import GROUP, PLURAL, VERSION, objects
from deadpool.clusters.kubernetes.job_state import MADE_FROM, OUTCOME, REASON, ask_leader
from deadpool.clusters.kubernetes.operator.status import (
    INVALID,
    LOOK_AGAIN_S,
    SPARES,
    WAITING,
    LostPods,
    PodView,
    changes,
    changes_without_effect,
    described,
    ended,
    in_words,
)
from deadpool.clusters.kubernetes.spec import JobSpec, checked_name, job_spec, state_name
from deadpool.errors import ConfigError
from deadpool.protocol.identity import Address
from deadpool.wire.credentials import OFF, Credentials, load_tls

if TYPE_CHECKING:
    from deadpool.clusters.kubernetes.operator.cluster import Cluster

_MACHINES_S = 2.0

LOOK_S = 1.0
STEPS_EVERY_S = 5.0
"""The time between two writes of the step of a job that just runs."""


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
        self._watches: dict[str, tuple[ResourceWatch, asyncio.Task[None]]] = {}
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

        assert self._cluster is not None
        uid = body["metadata"]["uid"]
        if deleted:
            if (known := self._watches.pop(uid, None)) is not None:
                known[1].cancel()
        elif uid in self._watches:
            self._watches[uid][0].body = body
        else:
            watch = ResourceWatch(self._cluster, body)
            self._watches[uid] = (watch, asyncio.create_task(watch.run()))

    async def _watch_machines(self, cluster: Cluster) -> None:
        """Machines that are back may get pods again, also when the job is gone for which they were marked."""

        while True:
            with contextlib.suppress(*api_troubles()):
                for node in await cluster.untaint_returned():
                    print(f"[deadpool] machine {node} is back", flush=True)
            await asyncio.sleep(_MACHINES_S)


def api_troubles() -> tuple[type[BaseException], ...]:
    """The API server is away, or refuses: the next look tries again."""
    from httpx2 import HTTPError
    from lightkube.core.exceptions import ApiError

    return (HTTPError, ApiError, OSError)


class ResourceWatch:
    def __init__(self, cluster: Cluster, body: dict[str, Any]) -> None:
        """`body` is the newest content of the DeadPoolJob; it is replaced when that changes."""
        self._cluster, self.body = cluster, body
        self._name, self._namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        self._applied: dict[str, Any] | None = None  # the newest spec that was looked at
        self._without_effect = ""
        self._spec: JobSpec | None = None
        self._shown: dict[str, Any] = {}
        self._lost = LostPods()
        self._marked: dict[str, tuple[str, bool]] = {}
        self._credentials: Credentials | None = None
        self._written_at = 0.0
        self._trouble = ""
        self._waits, self._waits_looked_at = "", -math.inf

    async def run(self) -> None:
        self._shown = dict(self.body["status"])
        while True:
            try:
                await self._look()
                self._report("")
            except ConfigError as error:
                await self._show({"phase": INVALID, "reason": str(error)})
            except api_troubles() as error:
                self._report(f"{type(error).__name__}: {error}")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        state = await self._cluster.state(self._name, self._namespace)
        if OUTCOME in state:
            await self._show(ended(state[OUTCOME], state.get(REASON, "")))
            return
        spec = await self._make_objects()
        answer = await self._ask(spec)
        if answer is None:
            reason = await self._what_pods_wait_for(spec)
            await self._show({"phase": WAITING, "reason": reason or "no coordinator leads"})
            return
        waits = await self._what_pods_wait_for(spec)
        await self._show(described(answer, spec.nodes, self._without_effect or waits))
        pods = await self._cluster.agents(self._name, self._namespace)
        await self._mark(pods, {node["node"]: node["role"] == "active" for node in answer["nodes"]})
        await self._replace_lost(pods, {node["node"] for node in answer["nodes"]}, answer["term"])
        await self._drain_going(pods)

    # --- objects ------------------------------------------------------------------------------------------------------

    async def _make_objects(self) -> JobSpec:
        wanted = self.body["spec"]
        if self._spec is not None and wanted == self._applied:
            return self._spec
        made = await self._cluster.made_from(self._name, self._namespace) or wanted
        self._without_effect = changes_without_effect(made, wanted)
        spares = {SPARES: wanted[SPARES]} if SPARES in wanted else {}
        spec = job_spec({name: value for name, value in made.items() if name != SPARES} | spares)
        checked_name(self._name)
        for content in objects(self._name, spec):
            content["metadata"]["ownerReferences"] = [self._owner()]
            if content["metadata"]["name"] == state_name(self._name):
                content["metadata"]["annotations"] = {MADE_FROM: json.dumps(made)}
            await self._cluster.create(content, self._namespace)
        await self._cluster.scale(self._name, self._namespace, spec.pods)
        self._applied, self._spec = dict(wanted), spec
        return spec

    def _owner(self) -> dict[str, Any]:
        from deadpool.clusters.kubernetes.job_objects import GROUP, KIND, VERSION

        own = {"name": self._name, "uid": self.body["metadata"]["uid"]}
        return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "controller": True, **own}

    # --- the job ------------------------------------------------------------------------------------------------------

    async def _ask(self, spec: JobSpec) -> dict[str, Any] | None:
        if self._credentials is None:
            secret = await self._cluster.secret(spec.secret_of(self._name), self._namespace)
            tls = load_tls(str(spec.settings.get("tls", OFF)), serving=False)
            self._credentials = Credentials(secret, tls)
        found = await self._cluster.coordinator_addresses(self._name, self._namespace)
        addresses = [Address(host=host, port=spec.port) for host in found]
        try:
            answer: dict[str, Any] = await ask_leader(addresses, self._credentials, "status")
        except ConfigError:
            return None
        return answer

    async def _show(self, shown: dict[str, Any]) -> None:
        due = time.monotonic() - self._written_at >= STEPS_EVERY_S
        if changed := changes(shown, self._shown, due=due):
            await self._cluster.show(self._name, self._namespace, changed)
            self._shown |= changed
            self._written_at = time.monotonic()

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def _what_pods_wait_for(self, spec: JobSpec) -> str:
        """Returns what unscheduled pods wait for. It is told once, and again when it has changed."""
        if time.monotonic() - self._waits_looked_at >= LOOK_AGAIN_S:
            self._waits_looked_at = time.monotonic()
            messages = await self._cluster.unscheduled(self._name, self._namespace)
            words = in_words(messages, spec.pods + len(spec.coordinator_names(self._name)))
            if words and words != self._waits:
                self._say(words)
            self._waits = words
        return self._waits

    async def _mark(self, pods: list[PodView], trains: dict[str, bool]) -> None:
        for pod in pods:
            mark = (pod.container, trains.get(pod.name, False))
            if pod.name in trains and pod.container and self._marked.get(pod.name) != mark:
                await self._cluster.mark(pod, self._namespace, trains=mark[1])
                self._marked[pod.name] = mark

    async def _replace_lost(self, pods: list[PodView], members: set[str], term: int) -> None:
        for pod in self._lost.find(pods, members, term, time.monotonic()):
            self._say(f"pod {pod.name} on machine {pod.node} is lost: it is replaced")
            await self._cluster.taint(pod.node)
            await self._cluster.delete(pod.name, self._namespace, grace_s=0)

    async def _drain_going(self, pods: list[PodView]) -> None:
        """A pod that is deleted hands its ranks over within its grace period."""
        going = await self._cluster.going()
        for pod in pods:
            if pod.node in going and not pod.leaving:
                self._say(f"machine {pod.node} is about to go: pod {pod.name} is drained")
                await self._cluster.delete(pod.name, self._namespace)

    def _report(self, trouble: str) -> None:
        """Once, when it changes."""
        if trouble and trouble != self._trouble:
            self._say(trouble)
        self._trouble = trouble

    def _say(self, text: str) -> None:
        print(f"[deadpool] {self._namespace}/{self._name}: {text}", flush=True)
