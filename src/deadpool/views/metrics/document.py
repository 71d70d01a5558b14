"""The reference of all metrics as Markdown, from the catalog."""

from __future__ import annotations

from deadpool.views.metrics.catalog import OF_AGENT, OF_COORDINATOR, Metric

_HEAD = """\
# Metrics

<!-- Generated: python -m deadpool.views.metrics > docs/metrics.md -->

What a coordinator and its agents expose with `--metrics-port`; [how to use them](howto/metrics.md). Names and units
follow the conventions of Prometheus: base units, `_total` for what only grows.
"""
_TABLE = "| metric | kind | labels | meaning |\n|---|---|---|---|\n"


def document() -> str:
    return "\n".join([_HEAD, *_section("Of the coordinator", OF_COORDINATOR), *_section("Of each agent", OF_AGENT)])


def _section(title: str, metrics: tuple[Metric, ...]) -> list[str]:
    return [f"## {title}\n", _TABLE + "".join(_row(metric) for metric in metrics)]


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |\n"
