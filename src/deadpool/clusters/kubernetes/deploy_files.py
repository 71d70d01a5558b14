"""Writes deploy/kubernetes: the Helm chart, the Kustomize base and the operator. A test compares the files."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from deadpool import __version__
from deadpool.clusters.kubernetes.chart import templates
from deadpool.clusters.kubernetes.objects import objects
from deadpool.clusters.kubernetes.operator_objects import operator_objects
from deadpool.clusters.kubernetes.rendering import as_yaml
from deadpool.clusters.kubernetes.spec import JobSpec

IMAGE = "deadpool"
"""A name that is to be replaced: by values of the chart, by `images` of Kustomize."""
_BASE_JOB = "train"
_NOTE = "# Made by `deadpool kubernetes deploy deploy/kubernetes`; change src/deadpool/clusters/kubernetes instead.\n"


def files() -> dict[str, str]:
    """Content by path."""
    base = JobSpec(
        image=IMAGE, program=["/work/train.py"], nodes=3, spares=1, secretName=f"{_BASE_JOB}-secret"
    ).checked()
    return {
        "base/job.yaml": _NOTE + as_yaml(objects(_BASE_JOB, base)),
        "base/kustomization.yaml": _NOTE + as_yaml([_kustomization(["job.yaml"]) | _secret_generator()]),
        "operator/operator.yaml": _NOTE + as_yaml(operator_objects(IMAGE)),
        "operator/kustomization.yaml": _NOTE + as_yaml([_kustomization(["operator.yaml"])]),
        "chart/Chart.yaml": _NOTE + as_yaml([_chart()]),
        "chart/values.yaml": _NOTE + _values(),
        "chart/values.schema.json": json.dumps(_schema(), indent=2) + "\n",
        "chart/templates/job.yaml": templates(),
    }


def write_all(folder: Path) -> None:
    for name, content in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def _kustomization(resources: list[str]) -> dict[str, Any]:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources}


def _secret_generator() -> dict[str, Any]:
    """Makes the Secret from a file that only its owner has: openssl rand -hex 32 > secret."""
    return {
        "secretGenerator": [{"name": f"{_BASE_JOB}-secret", "files": ["secret"]}],
        "generatorOptions": {"disableNameSuffixHash": True},
    }


def _chart() -> dict[str, Any]:
    return {
        "apiVersion": "v2",
        "name": "deadpool-job",
        "description": "A protected PyTorch training job",
        "type": "application",
        "version": re.sub(r"[^\d.].*$", "", __version__),
        "appVersion": __version__,
        "kubeVersion": ">=1.21.0-0",
    }


def _values() -> str:
    lines = []
    for field in dataclasses.fields(JobSpec):
        default = getattr(JobSpec(), field.name)
        lines += [f"# {field.metadata['help']}", f"{field.name}: {json.dumps(default)}"]
    return "\n".join(lines) + "\n"


def _schema() -> dict[str, Any]:
    """Helm checks the values against it. What only Kubernetes understands is left out."""
    fields = {each.name: _plain(each.metadata["schema"]) for each in dataclasses.fields(JobSpec)}
    fields["image"] = {"type": "string", "minLength": 1}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["image"]}
    return schema | {"properties": fields | {"global": {"type": "object"}}, "additionalProperties": False}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in schema.items() if not name.startswith("x-")}
    return plain | ({"items": _plain(schema["items"])} if "items" in schema else {})
