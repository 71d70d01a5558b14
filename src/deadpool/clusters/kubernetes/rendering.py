"""Objects as YAML, and values from YAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from deadpool.clusters.kubernetes.job_objects import custom_resource as custom_resource_of
from deadpool.clusters.kubernetes.job_objects import objects
from deadpool.clusters.kubernetes.spec import job_spec
from deadpool.errors import ConfigError

_BUDGETS_SINCE = (1, 21)
_LARGEST_SCRIPT_BYTES = 900_000
_VALUES = "file with a YAML mapping of fields of a job"


def read_values(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    yaml = _yaml()
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise ConfigError(f"values={str(path)!r} cannot be read: {reason}. Give a {_VALUES}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"values={str(path)!r} cannot be used: give a {_VALUES}")
    return read


def read_script(path: Path) -> str:
    """A ConfigMap holds at most 1 MiB; a larger program belongs into the image."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"script={str(path)!r} cannot be read: {reason}. Give the path of a script") from error
    if not text:
        raise ConfigError(f"script={str(path)!r} is empty: give the path of a training script")
    if len(text.encode()) > _LARGEST_SCRIPT_BYTES:
        raise ConfigError(f"script={str(path)!r} has more than {_LARGEST_SCRIPT_BYTES} bytes: put it into the image")
    return text


def job_objects(
    name: str, fields: dict[str, Any], *, custom_resource: bool = False, server_version: str = "1.21"
) -> list[dict[str, Any]]:
    spec = job_spec(fields)
    if custom_resource:
        return [custom_resource_of(name, fields)]
    return for_server(objects(name, spec), server_version)


def for_server(made: list[dict[str, Any]], version: str) -> list[dict[str, Any]]:
    """Adapts objects to the version of the server: before 1.21 a PodDisruptionBudget had another version, with the same
    fields.
    """
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers is None:
        raise ConfigError(f"server_version={version!r} cannot be used: give it as `kubectl version` does, as in 1.29")
    if (int(numbers[1]), int(numbers[2])) >= _BUDGETS_SINCE:
        return made
    return [each | {"apiVersion": "policy/v1beta1"} if each["apiVersion"] == "policy/v1" else each for each in made]


def as_yaml(made: list[dict[str, Any]], *, width: int = 120) -> str:
    yaml = _yaml()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc, name-defined]
        """Texts of several lines as blocks, and no references between objects."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent)
    return "---\n".join(yaml.dump(each, Dumper=Dumper, sort_keys=False, width=width) for each in made)


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("PyYAML is missing: pip install 'torch-deadpool[kubernetes]'") from error
    return yaml
