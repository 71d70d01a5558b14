"""The custom resource DeadPoolJob: its definition follows from the fields of a job."""

from __future__ import annotations

import dataclasses
from typing import Any

from deadpool.clusters.kubernetes.spec import JobSpec

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
