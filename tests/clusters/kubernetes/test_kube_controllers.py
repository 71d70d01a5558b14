"""Why agents are a Deployment: which controllers replace a pod whose machine is dead, without help."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from kube_cluster import Cluster
from kube_image import IMAGE

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
LIMIT_S = 60.0
KINDS = ("Deployment", "StatefulSet", "Job")


def sleeper(kind: str) -> dict[str, Any]:
    """One pod that does nothing, and would like to be on machine k5."""
    name = f"sleeper-{kind.lower()}"
    wish = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["k5"]}
    preferred = [{"weight": 100, "preference": {"matchExpressions": [wish]}}]
    pod = {
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "tolerations": [
            {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
            for what in ("unreachable", "not-ready")
        ],
        "containers": [{"name": "sleep", "image": IMAGE, "command": ["sleep", "100000"]}],
    }
    template = {"metadata": {"labels": {"sleeper": kind}}, "spec": pod}
    content: dict[str, Any] = {"template": template}
    if kind == "Job":
        pod["restartPolicy"] = "Never"
    else:
        content |= {"replicas": 1, "selector": {"matchLabels": {"sleeper": kind}}}
    if kind == "StatefulSet":
        content["serviceName"] = name
    api = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": content}


def places(cluster: Cluster) -> dict[str, set[str]]:
    """Machines on which a pod of each kind runs, as far as the API server knows."""
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for pod in cluster.items("pods", "-l", "sleeper"):
        if pod["status"]["phase"] == "Running":
            found[pod["metadata"]["labels"]["sleeper"]].add(pod["spec"]["nodeName"])
    return found


def test_deployment_replaces_pod_of_dead_machine_and_stateful_set_does_not(cluster: Cluster) -> None:
    try:
        for kind in KINDS:
            cluster.kubectl("apply", "-f", "-", text=json.dumps(sleeper(kind)))
        cluster.await_true(lambda: all(each == {"k5"} for each in places(cluster).values()), "sleepers on k5", 120)
        replaced: dict[str, float] = {}
        began = time.monotonic()
        cluster.ask("kill", "k5")
        while time.monotonic() < began + LIMIT_S and len(replaced) < len(KINDS):
            for kind, machines in places(cluster).items():
                if machines - {"k5"}:
                    replaced.setdefault(kind, time.monotonic() - began)
            time.sleep(0.5)
        print("\nTIMES replacement of a pod whose machine died:", {kind: replaced.get(kind, "none") for kind in KINDS})
        assert "Deployment" in replaced and "StatefulSet" not in replaced
    finally:
        cluster.ask("revive")
        for kind in KINDS:
            cluster.kubectl("delete", kind.lower(), f"sleeper-{kind.lower()}", "--wait=false", check=False)
        cluster.kubectl("delete", "pods", "-l", "sleeper", "--grace-period=0", "--force", check=False)
        cluster.await_true(lambda: len(cluster.ready_nodes()) == 5, "all nodes", 180)
