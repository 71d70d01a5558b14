"""What the operator asks of the API server, and does there."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

from lightkube import AsyncClient
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Node, Pod, Secret
from lightkube.types import PatchType

from deadpool.clusters.kubernetes.job_objects import GROUP, KIND, PLURAL, VERSION
from deadpool.clusters.kubernetes.job_state import MADE_FROM
from deadpool.clusters.kubernetes.operator.status import JOINED, PodView, scheduler_message
from deadpool.clusters.kubernetes.pods import AGENT, COORDINATOR, labels_of
from deadpool.clusters.kubernetes.spec import state_name

LOST = "deadpool.dev/lost"
"""Label and taint of a machine whose pods DeadPool has declared dead."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_TRAINING_COST = "1000"
_GOING = (
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/rebalance-recommendation",
    "kubernetes.azure.com/scheduledevent",
    "node.kubernetes.io/out-of-service",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "deadpool.dev/drain",
)
"""Taints that announce the end of a machine."""
_JOB = create_namespaced_resource(GROUP, VERSION, KIND, PLURAL)
_OLD_BUDGET: Any = create_namespaced_resource("policy", "v1beta1", "PodDisruptionBudget", "poddisruptionbudgets")


class Cluster:
    def __init__(self, client: AsyncClient) -> None:
        self._client: Any = client  # its overloads want the class of each object, which is known by its content only

    # --- objects of a job ---------------------------------------------------------------------------------------------

    async def create(self, content: dict[str, Any], namespace: str) -> None:
        """What exists already stays as it is: it may hold the secret, or the state of the job."""
        try:
            await self._client.create(from_dict(content), namespace=namespace)
        except ApiError as error:
            if error.status.code == 404 and content["apiVersion"] == "policy/v1":
                await self._create_old_budget(content, namespace)
            elif error.status.code != 409:
                raise

    async def _create_old_budget(self, content: dict[str, Any], namespace: str) -> None:
        """The API server is older than 1.21."""
        try:
            await self._client.create(_OLD_BUDGET(content | {"apiVersion": "policy/v1beta1"}), namespace=namespace)
        except ApiError as error:
            if error.status.code != 409:
                raise

    async def scale(self, job: str, namespace: str, pods: int) -> None:
        scale = {"spec": {"replicas": pods}}
        name = f"{job}-agents"
        await self._client.patch(Deployment.Scale, name, scale, namespace=namespace, patch_type=PatchType.MERGE)

    async def show(self, job: str, namespace: str, status: dict[str, Any]) -> None:
        change = {"status": status}
        await self._client.patch(_JOB.Status, job, change, namespace=namespace, patch_type=PatchType.MERGE)

    async def state(self, job: str, namespace: str) -> dict[str, str]:
        found = await self._state_object(job, namespace)
        return (found.data or {}) if found is not None else {}

    async def made_from(self, job: str, namespace: str) -> dict[str, Any] | None:
        """The spec that the job's objects were made from, if they exist."""
        found = await self._state_object(job, namespace)
        noted = (found.metadata.annotations or {}).get(MADE_FROM) if found is not None else None
        return json.loads(noted) if noted is not None else None

    async def _state_object(self, job: str, namespace: str) -> Any:
        try:
            return await self._client.get(ConfigMap, state_name(job), namespace=namespace)
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise

    async def secret(self, name: str, namespace: str) -> bytes:
        found = await self._client.get(Secret, name, namespace=namespace)
        return base64.b64decode((found.data or {}).get("secret", "")).strip()

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def coordinator_addresses(self, job: str, namespace: str) -> list[str]:
        pods = self._pods(job, namespace, COORDINATOR)
        return [pod.status.podIP async for pod in pods if pod.status.phase == "Running" and pod.status.podIP]

    async def agents(self, job: str, namespace: str) -> list[PodView]:
        return [_view(pod) async for pod in self._pods(job, namespace, AGENT) if pod.spec.nodeName]

    async def unscheduled(self, job: str, namespace: str) -> list[str]:
        """What the scheduler says of each pod that no machine takes."""
        pods = [pod for role in (COORDINATOR, AGENT) async for pod in self._pods(job, namespace, role)]
        return [message for pod in pods if (message := scheduler_message(pod)) is not None]

    def _pods(self, job: str, namespace: str, role: str) -> Any:
        return self._client.list(Pod, namespace=namespace, labels=dict(labels_of(job, role)))

    async def mark(self, pod: PodView, namespace: str, *, trains: bool) -> None:
        """Notes that the pod has joined. Of pods that are too many, those that do not train go first."""
        annotations = {JOINED: pod.container, DELETION_COST: _TRAINING_COST if trains else "0"}
        await self._client.patch(Pod, pod.name, {"metadata": {"annotations": annotations}}, namespace=namespace)

    async def delete(self, pod: str, namespace: str, *, grace_s: int | None = None) -> None:
        try:
            await self._client.delete(Pod, pod, namespace=namespace, grace_period=grace_s)
        except ApiError as error:
            if error.status.code != 404:
                raise

    # --- machines -----------------------------------------------------------------------------------------------------

    async def going(self) -> set[str]:
        """Machines whose end is announced."""
        return {
            node.metadata.name
            async for node in self._client.list(Node)
            if any(taint.key in _GOING for taint in node.spec.taints or [])
        }

    async def taint(self, node: str) -> None:
        """Taints a lost node: else the replacement would be scheduled onto the dead machine, which Kubernetes still
        takes for alive.
        """
        found = await self._client.get(Node, node)
        taints = [taint.to_dict() for taint in found.spec.taints or [] if taint.key != LOST]
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        added = {"key": LOST, "effect": "NoSchedule", "timeAdded": now.strftime("%Y-%m-%dT%H:%M:%SZ")}
        change = {"metadata": {"labels": {LOST: "true"}}, "spec": {"taints": [*taints, added]}}
        await self._client.patch(Node, node, change, patch_type=PatchType.MERGE)

    async def untaint_returned(self) -> list[str]:
        """A machine whose kubelet has renewed its lease since is back, or was never gone."""
        returned = []
        async for node in self._client.list(Node, labels={LOST: "true"}):
            if await self._is_back(node):
                await self._untaint(node)
                returned.append(node.metadata.name)
        return returned

    async def _is_back(self, node: Any) -> bool:
        added = next((taint.timeAdded for taint in node.spec.taints or [] if taint.key == LOST), None)
        if added is None:
            return True
        lease = await self._client.get(Lease, node.metadata.name, namespace="kube-node-lease")
        renewed = lease.spec.renewTime if lease.spec else None
        ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or [])
        return ready and renewed is not None and renewed > added + datetime.timedelta(seconds=1)

    async def _untaint(self, node: Any) -> None:
        taints = [taint.to_dict() for taint in node.spec.taints or [] if taint.key != LOST]
        change = {"metadata": {"labels": {LOST: None}}, "spec": {"taints": taints}}
        await self._client.patch(Node, node.metadata.name, change, patch_type=PatchType.MERGE)


def _view(pod: Any) -> PodView:
    statuses = pod.status.containerStatuses or []
    running = statuses and statuses[0].state and statuses[0].state.running and pod.status.phase == "Running"
    return PodView(
        name=pod.metadata.name,
        node=pod.spec.nodeName,
        container=statuses[0].containerID or "" if running else "",
        joined=(pod.metadata.annotations or {}).get(JOINED, ""),
        leaving=pod.metadata.deletionTimestamp is not None,
    )
