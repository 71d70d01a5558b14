"""The Helm chart, from the same objects as everything else: they are made once with marks in the place of values, and
each mark becomes an expression of Helm's.

A mark that is a whole value becomes its JSON, which is YAML; a mark inside of a text becomes its text; a mark that is
an element of a list becomes all elements of another list.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from deadpool.clusters.kubernetes.objects import MAKERS, coordinator_job, secret_object
from deadpool.clusters.kubernetes.rendering import as_yaml
from deadpool.clusters.kubernetes.spec import SCRIPT_FILE, JobSpec, apart

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
