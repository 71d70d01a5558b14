"""The files of deploy/kubernetes: the Helm chart, the Kustomize base and the operator. A test compares the files.

The Helm chart is made from the same objects as everything else: they are made once with marks in the place of values,
and each mark becomes an expression of Helm's. A mark that is a whole value becomes its JSON, which is YAML; a mark
inside of a text becomes its text; a mark that is an element of a list becomes all elements of another list.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool import __version__
from deadpool.clusters.kubernetes.job_objects import MAKERS, coordinator_job, objects, operator_objects, secret_object
from deadpool.clusters.kubernetes.job_objects import custom_resource as custom_resource_of
from deadpool.clusters.kubernetes.spec import SCRIPT_FILE, JobSpec, apart, job_spec
from deadpool.errors import ConfigError

_WHOLE = re.compile(r"""(?m)(?<=[:-] )['"]?@@(\w+)@@['"]?$""")
_ELEMENTS = re.compile(r"""(?m)^( *)- ['"]?@@\*(\w+)@@['"]?$""")
_INSIDE = re.compile(r"@@(\w+)@@")

_HEAD = """\
{{- $name := .Release.Name }}
{{- $coordinators := int (default (ternary 2 1 (gt (int .Values.nodes) 2)) .Values.coordinators) }}
{{- $coordinatorNames := list }}
{{- $addresses := list }}
{{- range $index := until $coordinators }}
{{- $coordinator := printf "%s-coordinator-%d" $name $index }}
{{- $coordinatorNames = append $coordinatorNames $coordinator }}
{{- $addresses = append $addresses (printf "%s.%s:%d" $coordinator $name (int $.Values.port)) }}
{{- end }}
{{- $program := .Values.program }}
{{- if .Values.script }}
{{- $program = concat (list "SCRIPT_FILE") .Values.program }}
{{- end }}
{{- $settings := list }}
{{- range $key, $value := .Values.settings }}
{{- $text := toString $value }}
{{- if kindIs "slice" $value }}{{ $text = join ";" $value }}{{ end }}
{{- $settings = append $settings (dict "name" (printf "DEADPOOL_%s" (upper $key)) "value" $text) }}
{{- end }}
{{- $secretName := default (printf "%s-secret" $name) .Values.secretName }}
{{- $secret := randAlphaNum 64 }}
{{- $known := lookup "v1" "Secret" .Release.Namespace $secretName }}
{{- if $known }}{{ $secret = index $known.data "secret" | b64dec }}{{ end }}
""".replace("SCRIPT_FILE", SCRIPT_FILE)
"""A secret that is there already stays: a job that runs could not be reached with another one."""

_EXPRESSIONS = {
    "job": "$name",
    "index": "$index",
    "addresses": 'join "," $addresses',
    "coordinatorNames": "$coordinatorNames",
    "pods": "add (int $.Values.nodes) (int $.Values.spares)",
    "stayingCoordinators": "sub $coordinators 1",
    "program": "$program",
    "variables": "$settings",
    "secretOf": "$secretName",
    "secret": "$secret",
}
"""The expressions of those marks that are not the name of a value."""

_BUDGETS_SINCE = (1, 21)
_LARGEST_SCRIPT_BYTES = 900_000
_VALUES = "file with a YAML mapping of fields of a job"


@dataclass(frozen=True, kw_only=True)
class MarkedSpec(JobSpec):
    """A job whose values are marks."""

    @property
    def pods(self) -> Any:
        return "@@pods@@"

    @property
    def staying_coordinators(self) -> Any:
        return "@@stayingCoordinators@@"

    def coordinator_addresses(self, job: str) -> str:
        return "@@addresses@@"

    def coordinator_names(self, job: str) -> list[str]:
        return ["@@*coordinatorNames@@"]

    def secret_of(self, job: str) -> str:
        return "@@secretOf@@"

    def program_words(self) -> list[str]:
        return ["@@*program@@"]

    def agent_affinity(self, labels: dict[str, str]) -> Any:
        return f"@@if onePerMachine@@{json.dumps(apart(labels))}"

    def variable_entries(self) -> Any:
        return ["@@*variables@@"]


_SPLICED = ("imagePullSecrets", "tolerations", "env", "volumes", "volumeMounts")


def templates() -> str:
    """The chart's only template."""
    marks: dict[str, Any] = {each.name: f"@@{each.name}@@" for each in dataclasses.fields(JobSpec)}
    marks |= {name: [f"@@*{name}@@"] for name in _SPLICED}
    spec, job = MarkedSpec(**marks), "@@job@@"
    secret = _document(secret_object(job, "@@secret@@"))
    shared = "".join(_document(make(job, spec)) for make in MAKERS)
    coordinators = _document(coordinator_job(job, spec, "@@index@@"))
    return (
        f"{_HEAD}{{{{- if not .Values.secretName }}}}\n{secret}{{{{- end }}}}\n{shared}"
        f"{{{{- range $index := until $coordinators }}}}\n{coordinators}{{{{- end }}}}\n"
    )


def _document(content: dict[str, Any]) -> str:
    text = as_yaml([content], width=100_000)
    text = re.sub(r"(?m)^( *affinity: )'?@@if (\w+)@@(.*?)'?$", _choice, text)
    text = _ELEMENTS.sub(_elements, text)
    text = _WHOLE.sub(lambda found: f"{{{{ toJson ({_expression(found[1])}) }}}}", text)
    return "---\n" + _INSIDE.sub(lambda found: f"{{{{ {_text(found[1])} }}}}", text)


def _choice(found: re.Match[str]) -> str:
    return f"{found[1]}{{{{ if $.Values.{found[2]} }}}}{found[3]}{{{{ else }}}}{{}}{{{{ end }}}}"


def _elements(found: re.Match[str]) -> str:
    indent, each = found[1], _expression(found[2])
    return f"{indent}{{{{- range {each} }}}}\n{indent}- {{{{ toJson . }}}}\n{indent}{{{{- end }}}}"


def _expression(name: str) -> str:
    return _EXPRESSIONS.get(name, f"$.Values.{name}")


def _text(name: str) -> str:
    """A number that Helm reads may be a float: without int it would be written with an exponent if it is large."""
    fields = {each.name: each.metadata["schema"]["type"] for each in dataclasses.fields(JobSpec)}
    return f"int $.Values.{name}" if fields.get(name) == "integer" else _expression(name)


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
