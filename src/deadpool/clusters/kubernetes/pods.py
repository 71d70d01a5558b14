"""The pods of a job, and what a coordinator learns of its own.

`labels_of`, `coordinator_pod` and `agent_pod`: the pods of a job: what a coordinator and an agent run, with which
rights, and how Kubernetes may end them.

`place` and `await_own_name`: what a coordinator has to know of its pod before it can listen: its place, and that its
name leads to it.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from typing import Any

from deadpool.clusters.kubernetes.spec import JobSpec, apart, coordinator_name
from deadpool.config.environment import SECRET_FILE_VARIABLE
from deadpool.config.job_config import JobConfig
from deadpool.errors import ConfigError
from deadpool.protocol.identity import Address

COORDINATOR, AGENT = "coordinator", "agent"
"""The roles of pods, as their label says."""
JOB_LABEL, ROLE_LABEL = "deadpool.dev/job", "deadpool.dev/role"

STATE_FOLDER, SECRET_FOLDER = "/run/deadpool", "/etc/deadpool/secret"
READY_FILE = f"{STATE_FOLDER}/ready"
RUN_FOLDER = f"{STATE_FOLDER}/run"
_SECRET_MODE = 0o400
"""The mode of the file; Kubernetes adds reading by the pod's own group, since the pod's user is not root."""
_COORDINATOR_GRACE_S = 5


def labels_of(job: str, role: str | None = None) -> dict[str, str]:
    return {JOB_LABEL: job} | ({ROLE_LABEL: role} if role else {})


def coordinator_pod(job: str, spec: JobSpec, index: Any) -> dict[str, Any]:
    container = {
        "name": COORDINATOR,
        "args": [
            "kubernetes",
            "coordinator",
            f"--job={job}",
            f"--index={index}",
            f"--nodes={spec.nodes}",
            f"--nproc-per-node={spec.nprocPerNode}",
            f"--run-dir={RUN_FOLDER}",
            f"--coordinators={spec.coordinator_addresses(job)}",
        ],
        "ports": [{"name": "control", "containerPort": spec.port}],
        "livenessProbe": {
            "exec": {"command": ["deadpool", "kubernetes", "probe"]},
            "initialDelaySeconds": 60,
            "periodSeconds": 60,
            "timeoutSeconds": 30,
            "failureThreshold": 5,
        },
    }
    pod = _pod(job, spec, container)
    pod |= {
        "hostname": coordinator_name(job, index),
        "subdomain": job,
        "restartPolicy": "Never",
        "serviceAccountName": f"{job}-coordinator",
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": _COORDINATOR_GRACE_S,
        "affinity": apart(labels_of(job, COORDINATOR)),
    }
    return {"metadata": {"labels": labels_of(job, COORDINATOR)}, "spec": pod}


def agent_pod(job: str, spec: JobSpec) -> dict[str, Any]:
    container = {
        "name": AGENT,
        "args": [
            "agent",
            f"--join={spec.coordinator_addresses(job)}",
            "--name=$(POD_NAME)",
            "--rack=$(NODE_NAME)",
            "--host=$(POD_IP)",
            f"--logs={STATE_FOLDER}/logs",
            f"--ready-file={READY_FILE}",
            "--",
            *spec.program_words(),
        ],
        "resources": spec.resources,
        # Ready means warm: a disruption budget lets the next pod go only when this one can take its ranks.
        "readinessProbe": {"exec": {"command": ["test", "-e", READY_FILE]}, "periodSeconds": 5},
    }
    pod = _pod(job, spec, container)
    pod |= {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": spec.graceSeconds,
        "affinity": spec.agent_affinity(labels_of(job, AGENT)),
        "nodeSelector": spec.nodeSelector,
    }
    return {"metadata": {"labels": labels_of(job, AGENT)}, "spec": pod}


def _pod(job: str, spec: JobSpec, container: dict[str, Any]) -> dict[str, Any]:
    return {
        "enableServiceLinks": False,
        "imagePullSecrets": spec.imagePullSecrets,
        "priorityClassName": spec.priorityClassName,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": spec.runAsUser,
            "runAsGroup": spec.runAsUser,
            "fsGroup": spec.runAsUser,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [*_tolerations(spec), *spec.tolerations],
        "volumes": [
            {"name": "secret", "secret": {"secretName": spec.secret_of(job), "defaultMode": _SECRET_MODE}},
            {"name": "script", "configMap": {"name": f"{job}-script"}},
            {"name": "state", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.sharedMemory}},
            *spec.volumes,
        ],
        "containers": [_container(spec) | container],
    }


def _tolerations(spec: JobSpec) -> list[dict[str, Any]]:
    """DeadPool has replaced a lost node long before Kubernetes calls it lost: a pod there is of no use to the job."""
    return [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": spec.evictAfterSeconds,
        }
        for condition in ("unreachable", "not-ready")
    ]


def _container(spec: JobSpec) -> dict[str, Any]:
    return {
        "image": spec.image,
        "imagePullPolicy": spec.imagePullPolicy,
        "command": ["deadpool"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "env": [
            {"name": SECRET_FILE_VARIABLE, "value": f"{SECRET_FOLDER}/secret"},
            {"name": "HOME", "value": STATE_FOLDER},
            _of_pod("POD_NAME", "metadata.name"),
            _of_pod("POD_IP", "status.podIP"),
            _of_pod("NODE_NAME", "spec.nodeName"),
            *spec.variable_entries(),
            *spec.env,
        ],
        "volumeMounts": [
            {"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": True},
            {"name": "script", "mountPath": "/etc/deadpool/script", "readOnly": True},
            {"name": "state", "mountPath": STATE_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
            *spec.volumeMounts,
        ],
    }


def _of_pod(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


_NAME_S = 120.0


def place(settings: JobConfig, index: int) -> JobConfig:
    """The settings with the address that the list of coordinators has for this one."""
    places = settings.coordinator_places
    if not 0 <= index < len(places):
        raise ConfigError(
            f"index={index} cannot be used: give a place in coordinators={settings.coordinators!r}, from 0 on"
        )
    own = Address.parse(places[index])
    return dataclasses.replace(settings, host=own.host, port=own.port)


def await_own_name(host: str, deadline_s: float = _NAME_S) -> None:
    """The cluster's DNS learns of a new pod with a delay. An earlier pod of this name had another address."""
    own, deadline = os.environ.get("POD_IP"), time.monotonic() + deadline_s
    while (found := _resolved(host)) is None or (own is not None and own != found):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"host={host!r} leads to {found or 'nothing'}, and this pod is {own}: look at the job's Service and at "
                "the cluster's DNS"
            )
        time.sleep(0.2)


def _resolved(host: str) -> str | None:
    try:
        return socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0]  # type: ignore[return-value]
    except OSError:
        return None
