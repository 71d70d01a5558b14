"""The Helm chart gives the same objects as the command, rendered by Go's own templates with Helm's functions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_kube_objects import DEPLOY, FULL, ONE_COORDINATOR, PLAIN, made

yaml = pytest.importorskip("yaml")
GO = next((str(path) for path in sorted(Path("/usr/lib").glob("go-*/bin/go"))), None) or shutil.which("go")
SPRIG = Path("/usr/share/gocode/src/github.com/Masterminds/sprig")

pytestmark = pytest.mark.skipif(
    GO is None or not SPRIG.exists(),
    reason="needs Go and golang-github-masterminds-sprig-dev: scripts/testbed kubernetes build",
)


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("helm")
    cache = DEPLOY.parents[1] / ".testbed/kubernetes/gocache"
    variables = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "CGO_ENABLED": "0", "GOFLAGS": ""}
    variables["GOCACHE"] = str(cache if cache.exists() else folder / "cache")
    source = Path(__file__).with_name("helm_render.go")
    command = [str(GO), "build", "-o", str(folder / "render"), str(source)]
    subprocess.run(command, env={**os.environ, **variables}, check=True, timeout=110, cwd=folder)
    return folder / "render"


def rendered(renderer: Path, fields: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    values = yaml.safe_load((DEPLOY / "chart/values.yaml").read_text()) | fields
    (folder / "values.json").write_text(json.dumps(values))
    command = [renderer, DEPLOY / "chart/templates/job.yaml", folder / "values.json", "my-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def comparable(content: Any) -> Any:
    """Without empty values, which are written in several ways, and without the secret itself, which is random."""
    if isinstance(content, dict):
        kept = {name: comparable(value) for name, value in content.items() if name != "stringData"}
        return {name: value for name, value in kept.items() if value not in (None, [], {}, "")}
    return [comparable(each) for each in content] if isinstance(content, list) else content


def by_name(content: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    return {(each["kind"], each["metadata"]["name"]): comparable(each) for each in content}


@pytest.mark.parametrize(
    "fields", [PLAIN, FULL, ONE_COORDINATOR, PLAIN | {"coordinators": 3}], ids=["plain", "full", "one", "three"]
)
def test_chart_and_command_give_the_same(renderer: Path, fields: dict[str, Any], tmp_path: Path) -> None:
    assert by_name(rendered(renderer, fields, tmp_path)) == by_name(made(fields, "my-run"))


def test_each_installation_has_a_secret_of_its_own(renderer: Path, tmp_path: Path) -> None:
    found = {rendered(renderer, PLAIN, tmp_path)[0]["stringData"]["secret"] for _ in range(2)}
    assert len(found) == 2 and all(len(each) == 64 for each in found)
