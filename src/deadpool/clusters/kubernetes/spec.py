"""What a user says of a job on Kubernetes, described once.

`deadpool kubernetes manifest`, the schema of the custom resource and the values of the Helm chart follow from it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.config.resolution import resolve
from deadpool.config.values import settings_of
from deadpool.errors import ConfigError

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?$")
_LONGEST_NAME = 45
"""Pods get this name and up to 18 characters more, and a host name has at most 63."""
_SET_ELSEWHERE = {"nodes", "spares", "nproc_per_node", "host", "interface", "port", "coordinators", "topology"}
"""Settings of a job that have a field of their own, or that follow from where pods run."""

SCRIPT_FILE = "/etc/deadpool/script/train.py"
"""Where the text of a script is mounted."""

_TEXTS = {"type": "array", "items": {"type": "string"}}
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_LIST = {"type": "array", "items": _ANY}


def _about(help: str, schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` is the OpenAPI schema of the value."""
    return {"help": help, "schema": schema}


def field(default: Any, help: str, schema: dict[str, Any]) -> Any:
    return dataclasses.field(default=default, metadata=_about(help, schema))


def _number(least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least}


_TEXT: dict[str, Any] = {"type": "string"}
_TRUTH: dict[str, Any] = {"type": "boolean"}


def state_name(job: str) -> str:
    """Returns the name of the ConfigMap with what outlives pods."""
    return f"{job}-state"


def coordinator_name(job: str, index: Any) -> str:
    """Returns the name of a coordinator's Job, and of its pods in the job's Service."""
    return f"{job}-coordinator-{index}"


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Field names are those of the custom resource, written as Kubernetes writes them."""

    image: str = field("", "the image of all pods: DeadPool with the extra kubernetes, torch and the script", _TEXT)
    imagePullPolicy: str = field(
        "IfNotPresent", "as of a container", {"type": "string", "enum": ["Always", "IfNotPresent", "Never"]}
    )
    imagePullSecrets: list[Any] = dataclasses.field(default_factory=list, metadata=_about("as of a pod", _LIST))
    program: list[str] = dataclasses.field(
        default_factory=list, metadata=_about("the training script, or -m and a module, and its arguments", _TEXTS)
    )
    script: str = field("", "the text of the script, if it is not in the image; program has its arguments", _TEXT)
    nodes: int = field(1, "pods that train", _number(1))
    spares: int = field(1, "pods that wait, warm, to take the ranks of lost ones", _number(0))
    nprocPerNode: int = field(1, "trainers per pod, one rank each", _number(1))
    coordinators: int = field(0, "coordinators; 0: two, or one if fewer than 3 pods train", _number(0))
    settings: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata=_about("settings of the job as in a configuration file, e.g. node_timeout_s", _ANY),
    )
    resources: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata=_about("requests and limits of each agent's container; GPUs are limits, e.g. nvidia.com/gpu: 8", _ANY),
    )
    sharedMemory: str = field("8Gi", "size of /dev/shm, which data loaders and NCCL use; it counts as memory", _TEXT)
    port: int = field(29400, "port of the coordinators", _number(1))
    graceSeconds: int = field(
        300, "time for a pod that is deleted to hand its ranks over: longer than a rehearsal and a recovery", _number(1)
    )
    evictAfterSeconds: int = field(
        10, "time from when Kubernetes takes a node for lost to when a pod on it is replaced", _number(0)
    )
    onePerMachine: bool = field(True, "no two agents of this job on one machine", _TRUTH)
    runAsUser: int = field(1000, "user and group of all processes; root is refused", _number(1))
    env: list[Any] = dataclasses.field(
        default_factory=list, metadata=_about("as of a container, for coordinators and agents", _LIST)
    )
    volumes: list[Any] = dataclasses.field(
        default_factory=list, metadata=_about("as of a pod, for coordinators and agents", _LIST)
    )
    volumeMounts: list[Any] = dataclasses.field(
        default_factory=list, metadata=_about("as of a container, for coordinators and agents", _LIST)
    )
    nodeSelector: dict[str, Any] = dataclasses.field(
        default_factory=dict, metadata=_about("as of a pod, for agents", _ANY)
    )
    tolerations: list[Any] = dataclasses.field(
        default_factory=list,
        metadata=_about("as of a pod, for coordinators and agents, e.g. for tainted GPU machines", _LIST),
    )
    priorityClassName: str = field("", "as of a pod, for coordinators and agents", _TEXT)
    secretName: str = field("", "an existing Secret with a key named secret; empty: one is made", _TEXT)

    @property
    def coordinator_count(self) -> int:
        """One of several coordinators may act only with most of the nodes that ran; most of two nodes are both."""
        return self.coordinators or (2 if self.nodes > 2 else 1)

    @property
    def staying_coordinators(self) -> int:
        """The number of coordinators that stay while a machine is drained. The only coordinator may go: another pod
        takes the job over.
        """
        return self.coordinator_count - 1

    @property
    def pods(self) -> int:
        return self.nodes + self.spares

    def coordinator_address(self, job: str, index: int) -> str:
        """A name of the job's own Service, which leads to whichever pod has this place now."""
        return f"{coordinator_name(job, index)}.{job}:{self.port}"

    def coordinator_names(self, job: str) -> list[str]:
        return [coordinator_name(job, index) for index in range(self.coordinator_count)]

    def coordinator_addresses(self, job: str) -> str:
        return ",".join(self.coordinator_address(job, index) for index in range(self.coordinator_count))

    def secret_of(self, job: str) -> str:
        return self.secretName or f"{job}-secret"

    def program_words(self) -> list[str]:
        return ([SCRIPT_FILE] if self.script else []) + self.program

    def agent_affinity(self, labels: dict[str, str]) -> dict[str, Any]:
        return apart(labels) if self.onePerMachine else {}

    def variable_entries(self) -> list[dict[str, Any]]:
        return [{"name": name, "value": value} for name, value in self.variables().items()]

    def checked(self) -> JobSpec:
        """Raises ConfigError where a value cannot work."""
        if not self.image:
            raise ConfigError("image='' cannot be used: give the image that the pods run")
        if not self.program and not self.script:
            raise ConfigError("program=[] cannot be used: name the training script, as the image has it")
        if misplaced := sorted(_SET_ELSEWHERE & set(self.settings)):
            raise ConfigError(f"settings.{misplaced[0]} cannot be used: it follows from the other fields of the job")
        self._job_config()
        return self

    def _job_config(self) -> JobConfig:
        """The settings that coordinators will find."""
        known = {each.name: each for each in settings_of(JobConfig)}
        if unknown := sorted(set(self.settings) - set(known)):
            raise ConfigError(f"settings.{unknown[0]} is not a setting: known are {', '.join(sorted(known))}")
        variables = {known[name].variable: written(value) for name, value in self.settings.items()}
        values = {
            "nodes": self.nodes,
            "spares": self.spares,
            "nproc_per_node": self.nprocPerNode,
            "coordinators": self.coordinator_addresses("job"),
        }
        return resolve(values, environment=variables)

    def variables(self) -> dict[str, str]:
        """The settings as the environment variables that coordinators and agents read."""
        names = {each.name: each.variable for each in settings_of(JobConfig)}
        return {names[name]: written(value) for name, value in sorted(self.settings.items())}


def apart(labels: dict[str, str]) -> dict[str, Any]:
    """No two pods with these labels on one machine."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ";".join(map(str, value)) if isinstance(value, list) else str(value)


def job_spec(values: Mapping[str, Any]) -> JobSpec:
    """Reads the specification from a file of values or a custom resource. It raises ConfigError for what is unknown or
    of the wrong kind.
    """
    fields = {each.name: each for each in dataclasses.fields(JobSpec)}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(f"{name} is not a field of a job: known are {', '.join(fields)}")
        kind = fields[name].metadata["schema"]["type"]
        if not isinstance(value, _KINDS[kind]) or (kind == "integer" and isinstance(value, bool)):
            raise ConfigError(f"{name}={value!r} cannot be used: give {_ACCEPTED[kind]}")
        if (least := fields[name].metadata["schema"].get("minimum")) is not None and value < least:
            raise ConfigError(f"{name}={value!r} cannot be used: give a number of at least {least}")
    return JobSpec(**values).checked()


def checked_name(name: str) -> str:
    if not _NAME.match(name) or len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"name={name!r} cannot be used: give at most {_LONGEST_NAME} of a to z, 0 to 9 and -, and a letter first"
        )
    return name


_KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_ACCEPTED = {
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
