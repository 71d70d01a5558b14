"""The objects that the operator itself consists of, and the rights it needs."""

from __future__ import annotations

from typing import Any

from deadpool.clusters.kubernetes.job_objects import GROUP, OPERATOR, PLURAL, definition

NAMESPACE = "deadpool-system"
_LABELS = {"app.kubernetes.io/name": OPERATOR}
_RBAC = "rbac.authorization.k8s.io"


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
