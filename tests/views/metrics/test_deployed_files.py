"""The files in deploy/ that monitoring systems read: alert rules by promtool, the dashboard by Grafana's own types.

No Grafana can be installed from Debian, PyPI or npm, so the dashboard is not loaded in a real one here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deadpool.views.metrics.catalog import OF_AGENT, OF_COORDINATOR

DEPLOY = Path(__file__).parents[3] / "deploy"
PROMETHEUS, DASHBOARD = DEPLOY / "prometheus", DEPLOY / "grafana" / "deadpool.json"
NAMES = {metric.name for metric in (*OF_COORDINATOR, *OF_AGENT)}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: scripts/packages installs it"
)


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], cwd=PROMETHEUS, capture_output=True, text=True, timeout=300)


@needs_promtool
@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "deadpool-alerts.yml"),
        ("test", "rules", "deadpool-alerts-test.yml"),
    ],
    ids=" ".join,
)
def test_prometheus_takes_the_files(words):
    done = promtool(*words)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_every_alert_is_tested():
    alerts = re.findall(r"alert: (\w+)", (PROMETHEUS / "deadpool-alerts.yml").read_text())
    tested = (PROMETHEUS / "deadpool-alerts-test.yml").read_text()
    assert len(alerts) > 5
    assert [alert for alert in alerts if alert not in tested] == []


def expressions() -> Iterator[str]:
    board = json.loads(DASHBOARD.read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["expr"] for each in board["annotations"]["list"])


def test_dashboard_and_alerts_ask_for_metrics_that_exist():
    asked = " ".join([*expressions(), (PROMETHEUS / "deadpool-alerts.yml").read_text()])
    named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bdeadpool_\w+", asked)}
    assert len(named) > 15
    assert named - NAMES == set()


def test_dashboard_is_what_grafana_knows():
    """Read into the types that Grafana publishes, and written again: a field that they do not know would be gone."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="grafana-foundation-sdk is missing")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    board = json.loads(DASHBOARD.read_text())
    again = json.loads(JSONEncoder().encode(models.Dashboard.from_json(board)))
    assert list(missing(board, again)) == []
    board["panels"][0]["no_such_field"] = 1
    again = json.loads(JSONEncoder().encode(models.Dashboard.from_json(board)))
    assert list(missing(board, again)) == ["/panels/0/no_such_field"]


def missing(one: object, other: object, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name, value in one.items():
            yield from missing(value, other.get(name), f"{path}/{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (each, its_twin) in enumerate(zip(one, other, strict=True)):
            yield from missing(each, its_twin, f"{path}/{index}")
    elif one != other:
        yield path


def test_panels_do_not_overlap():
    cells = [
        (x, y)
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) == 23
