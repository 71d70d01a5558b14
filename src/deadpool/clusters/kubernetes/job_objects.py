"""The objects of a job, the resource that describes one, and the objects that the operator itself consists of.

The definition of the custom resource DeadPoolJob follows from the fields of a job. This is the only place that writes
these objects: the Helm chart, the Kustomize base and the operator take them from here.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from typing import Any

from deadpool.clusters.kubernetes.pods import AGENT, COORDINATOR, agent_pod, coordinator_pod, labels_of
from deadpool.clusters.kubernetes.spec import JobSpec, coordinator_name, state_name

GROUP, VERSION, KIND, PLURAL = "deadpool.dev", "v1alpha1", "DeadPoolJob", "deadpooljobs"
_COLUMNS = (
    ("Phase", "string", ".status.phase"),
    ("Step", "integer", ".status.step"),
    ("Watermark", "integer", ".status.watermark"),
    ("Nodes", "string", ".status.nodes"),
    ("Spares", "integer", ".status.spares"),
    ("Last fault", "string", ".status.lastFault"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_STATUS = {
    "phase": {"type": "string"},
    "step": {"type": "integer"},
    "watermark": {"type": "integer"},
    "nodes": {"type": "string"},
    "spares": {"type": "integer"},
    "lastFault": {"type": "string"},
    "reason": {"type": "string"},
}

NAMESPACE = "deadpool-system"
_RBAC = "rbac.authorization.k8s.io"


def custom_resource(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "spec": fields}


def definition() -> dict[str, Any]:
    names = {"kind": KIND, "plural": PLURAL, "singular": "deadpooljob", "shortNames": ["dpj"], "categories": ["all"]}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": name, "type": kind, "jsonPath": path} for name, kind, path in _COLUMNS],
        "schema": {"openAPIV3Schema": _schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _schema() -> dict[str, Any]:
    fields = {each.name: _field(each) for each in dataclasses.fields(JobSpec)}
    status = {"type": "object", "properties": _STATUS, "x-kubernetes-preserve-unknown-fields": True}
    return {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {"type": "object", "required": ["image"], "properties": fields},
            "status": status,
        },
    }


def _field(field: Any) -> dict[str, Any]:
    return {"description": field.metadata["help"], **field.metadata["schema"]}


_RETRIES = 1000
"""Pods of a coordinator that may be lost. When the job has failed, its coordinator sets this to none."""
_DNS_PORT, _API_PORTS = 53, (443, 6443)

Maker = Callable[[str, JobSpec], dict[str, Any]]


def objects(job: str, spec: JobSpec, *, secret: str | None = None) -> list[dict[str, Any]]:
    """`secret` is that of an existing job; else a new one is made, unless the spec names a Secret."""
    made = [] if spec.secretName else [secret_object(job, secret or secrets.token_hex(32))]
    made += [make(job, spec) for make in MAKERS]
    return made + [coordinator_job(job, spec, index) for index in range(spec.coordinator_count)]


def _object(api: str, kind: str, job: str, name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels_of(job)}, **content}


def secret_object(job: str, secret: str) -> dict[str, Any]:
    return _object("v1", "Secret", job, f"{job}-secret", type="Opaque", stringData={"secret": secret})


def _script(job: str, spec: JobSpec) -> dict[str, Any]:
    return _object("v1", "ConfigMap", job, f"{job}-script", data={"train.py": spec.script})


def _state(job: str, spec: JobSpec) -> dict[str, Any]:
    """Empty: coordinators write into it that the job has begun, and how it ended."""
    return _object("v1", "ConfigMap", job, state_name(job))


def _service(job: str, spec: JobSpec) -> dict[str, Any]:
    """Makes the Service that gives coordinators their names. Agents reach each other by address."""
    content = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels_of(job, COORDINATOR),
        "ports": [{"name": "control", "port": spec.port, "targetPort": spec.port}],
    }
    return _object("v1", "Service", job, job, spec=content)


def _account(job: str, spec: JobSpec) -> dict[str, Any]:
    name = f"{job}-coordinator"
    return _object("v1", "ServiceAccount", job, name, automountServiceAccountToken=False)


def _role(job: str, spec: JobSpec) -> dict[str, Any]:
    """What a coordinator may do: note that the job has begun or ended, end the agents' pods with the job, and have its
    Jobs fail with the job."""
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [state_name(job)], "verbs": ["get", "patch"]},
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/scale"],
            "resourceNames": [f"{job}-agents"],
            "verbs": ["get", "patch"],
        },
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "resourceNames": spec.coordinator_names(job),
            "verbs": ["patch"],
        },
    ]
    return _object("rbac.authorization.k8s.io/v1", "Role", job, f"{job}-coordinator", rules=rules)


def _role_binding(job: str, spec: JobSpec) -> dict[str, Any]:
    name = f"{job}-coordinator"
    return _object(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        job,
        name,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name}],
    )


def _agents(job: str, spec: JobSpec) -> dict[str, Any]:
    """A Deployment, because it replaces a lost pod at once and as often as needed. A StatefulSet waits until the pod of
    a dead machine is removed by hand, a Job waits longer after each loss."""
    content = {
        "replicas": spec.pods,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels_of(job, AGENT)},
        "template": agent_pod(job, spec),
    }
    return _object("apps/v1", "Deployment", job, f"{job}-agents", spec=content)


def coordinator_job(job: str, spec: JobSpec, index: Any) -> dict[str, Any]:
    """A Job, so that its state tells whether training succeeded."""
    content = {"backoffLimit": _RETRIES, "completions": 1, "template": coordinator_pod(job, spec, index)}
    return _object("batch/v1", "Job", job, coordinator_name(job, index), spec=content)


def _agent_budget(job: str, spec: JobSpec) -> dict[str, Any]:
    """One after the other: the next may go when its successor is warm."""
    content = {"maxUnavailable": 1, "selector": {"matchLabels": labels_of(job, AGENT)}}
    return _object("policy/v1", "PodDisruptionBudget", job, f"{job}-agent", spec=content)


def _coordinator_budget(job: str, spec: JobSpec) -> dict[str, Any]:
    """Kubernetes cannot count the pods of several Jobs, so this says how many have to stay."""
    selector = {"matchLabels": labels_of(job, COORDINATOR)}
    content = {"minAvailable": spec.staying_coordinators, "selector": selector}
    return _object("policy/v1", "PodDisruptionBudget", job, f"{job}-coordinator", spec=content)


def _network_policy(job: str, spec: JobSpec) -> dict[str, Any]:
    """Pods of the job reach each other on all ports (collectives choose theirs), names and the API server. An operator
    reaches the coordinators. What a script reads from elsewhere needs a policy of its own."""
    peers = [{"podSelector": {"matchLabels": labels_of(job)}}]
    operators = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": OPERATOR}}}]
    content = {
        "podSelector": {"matchLabels": labels_of(job)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": peers}, {"from": operators, "ports": [{"protocol": "TCP", "port": spec.port}]}],
        "egress": [
            {"to": peers},
            {"ports": [{"protocol": protocol, "port": _DNS_PORT} for protocol in ("UDP", "TCP")]},
            {"ports": [{"protocol": "TCP", "port": port} for port in _API_PORTS]},
        ],
    }
    return _object("networking.k8s.io/v1", "NetworkPolicy", job, job, spec=content)


OPERATOR = "deadpool-operator"
MAKERS: tuple[Maker, ...] = (
    _script,
    _state,
    _service,
    _account,
    _role,
    _role_binding,
    _coordinator_budget,
    _agent_budget,
    _network_policy,
    _agents,
)
"""The makers of the objects that every job has once."""


_LABELS = {"app.kubernetes.io/name": OPERATOR}


def _rule(groups: str, resources: str, verbs: str) -> dict[str, Any]:
    return {"apiGroups": groups.split(","), "resources": resources.split(), "verbs": verbs.split()}


_RULES = [
    _rule(GROUP, PLURAL, "get list watch"),
    _rule(GROUP, f"{PLURAL}/status", "patch"),
    # What a job consists of. It is made once, and goes with the job; only the number of pods is changed.
    _rule("", "services serviceaccounts", "create"),
    _rule("", "secrets", "create get"),
    _rule("", "configmaps", "create get patch"),  # patch: only who has a right may give it to a coordinator
    _rule("apps", "deployments", "create"),
    _rule("apps", "deployments/scale", "get patch"),
    _rule("batch", "jobs", "create patch"),  # patch: as above
    _rule("policy", "poddisruptionbudgets", "create"),
    _rule("networking.k8s.io", "networkpolicies", "create"),
    _rule(_RBAC, "roles rolebindings", "create"),
    # Lost pods and machines.
    _rule("", "pods", "list patch delete"),
    _rule("", "nodes", "get list patch"),
    _rule("coordination.k8s.io", "leases", "get"),
    # What kopf asks for: in which namespaces to look, and where to note events.
    _rule("", "namespaces", "list watch"),
    _rule("apiextensions.k8s.io", "customresourcedefinitions", "list watch"),
    _rule(",events.k8s.io", "events", "create"),
]


def operator_objects(image: str) -> list[dict[str, Any]]:
    named = {"name": OPERATOR, "namespace": NAMESPACE, "labels": _LABELS}
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": OPERATOR}
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": NAMESPACE}
    clusterwide = {"name": OPERATOR, "labels": _LABELS}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        definition(),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": clusterwide, "rules": _RULES},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": clusterwide,
            "roleRef": role,
            "subjects": [subject],
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": named, "spec": _deployment(image)},
    ]


def _deployment(image: str) -> dict[str, Any]:
    container = {
        "name": "operator",
        "image": image,
        "command": ["deadpool"],
        "args": ["kubernetes", "operator"],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        "serviceAccountName": OPERATOR,
        "terminationGracePeriodSeconds": 10,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # The operator is most wanted when machines die: it does not wait long on one of them.
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{condition}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 5,
            }
            for condition in ("unreachable", "not-ready")
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "containers": [container],
    }
    return {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }
