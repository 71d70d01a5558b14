"""Every metric, and its reference.

`Metric`: every metric that coordinators and agents expose: name, kind, labels, meaning. docs/metrics.md is made of
it.

`document`: the reference of all metrics as Markdown, from the catalog.
"""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


def _metric(name: str, kind: str, help: str, *labels: str) -> Metric:
    return Metric(name=name, kind=kind, help=help, labels=labels)


OF_COORDINATOR = (
    _metric("deadpool_build_info", GAUGE, "Always 1; the label is the version of DeadPool.", "version"),
    _metric("deadpool_leading", GAUGE, "1: this process is the coordinator. 0: it stands by, and has no other series."),
    _metric("deadpool_phase", GAUGE, "1 for the phase that the job is in, 0 for the others.", "phase"),
    _metric("deadpool_steps_total", COUNTER, "Completed steps; one that is computed again counts once."),
    _metric("deadpool_step", GAUGE, "Completed steps of the job. It falls when a loss has cost steps."),
    _metric("deadpool_step_seconds", HISTOGRAM, "Duration of the steps of rank 0."),
    _metric("deadpool_watermark_step", GAUGE, "The newest version of which every copy is in place."),
    _metric("deadpool_watermark_lag_steps", GAUGE, "Completed steps that a loss now would cost."),
    _metric("deadpool_capture_interval_steps", GAUGE, "Steps from one snapshot to the next."),
    _metric("deadpool_overhead_ratio", GAUGE, "Measured share of the step time that protection costs."),
    _metric("deadpool_overhead_error_ratio", GAUGE, "How uncertain that share is (plus or minus)."),
    _metric("deadpool_faults_total", COUNTER, "Faults and handovers of drains, by what was lost.", "kind"),
    _metric("deadpool_recoveries_total", COUNTER, "Recoveries after which every rank has done a step.", "kind"),
    _metric("deadpool_recovery_seconds", HISTOGRAM, "From the fault until every rank has done its first step."),
    _metric("deadpool_recovery_phase_seconds", HISTOGRAM, "Phases of recoveries, as in deadpool story.", "phase"),
    _metric("deadpool_lost_steps_total", COUNTER, "Completed steps that were computed again."),
    _metric("deadpool_lost_seconds_total", COUNTER, "Time in recoveries that are over."),
    _metric(
        "deadpool_goodput_ratio", GAUGE, "Share of the time since training began in which new steps were computed."
    ),
    _metric("deadpool_nodes", GAUGE, "Nodes in the job, spares included."),
    _metric("deadpool_spares", GAUGE, "Spare nodes."),
    _metric("deadpool_carried_ranks", GAUGE, "Ranks without a process of their own, since the job has shrunk."),
    _metric("deadpool_quarantined_nodes", GAUGE, "Nodes that get no more ranks because they had too many faults."),
    _metric("deadpool_stragglers", GAUGE, "Nodes that all others wait for."),
    _metric("deadpool_arena_bytes", GAUGE, "Host memory that the snapshots of all nodes take."),
    _metric("deadpool_sent_bytes_total", COUNTER, "Bytes of snapshots that all nodes have sent to their holders."),
    _metric("deadpool_transfer_bytes_per_second", GAUGE, "Bandwidth of one transfer, the mean of all nodes."),
    _metric("deadpool_slowest_transfer_bytes_per_second", GAUGE, "Bandwidth of one transfer of the slowest node."),
    _metric("deadpool_evictions_total", COUNTER, "Nodes that were to leave because they looked ill (--evict-ill)."),
    _metric("deadpool_corruptions_total", COUNTER, "Errors of nodes that replicas or a redo have found."),
    _metric("deadpool_step_audits_total", COUNTER, "Steps that were computed twice and alike."),
    _metric("deadpool_corruption_unsolved", GAUGE, "1: replicas differ, and nobody is looked for any more."),
    _metric("deadpool_protection_changes_total", COUNTER, "How often the job has changed its own protection."),
    _metric("deadpool_takeovers_total", COUNTER, "How often another coordinator has taken over."),
    _metric("deadpool_events_total", COUNTER, "Events, by name.", "event"),
    _metric("deadpool_newest_event_timestamp_seconds", GAUGE, "Time of the newest event."),
    _metric(
        "deadpool_events_waiting", GAUGE, "Events in memory because the disk of the run folder does not take them."
    ),
    _metric(
        "deadpool_unwritten",
        GAUGE,
        "1 for what a disk does not take now: events, job.json, lines of logs. No node: the coordinator's disk.",
        "node",
        "what",
    ),
    _metric("deadpool_standbys", GAUGE, "Standby coordinators that answer; absent in a job without any."),
)
OF_AGENT = (
    _metric("deadpool_build_info", GAUGE, "Always 1; the label is the version of DeadPool.", "version"),
    _metric("deadpool_node_connected", GAUGE, "1: a coordinator has taken this node in.", "node"),
    _metric("deadpool_node_steps_total", COUNTER, "Steps that a rank has completed here, also again.", "node", "rank"),
    _metric("deadpool_node_step_seconds", HISTOGRAM, "Duration of the steps of a rank here.", "node", "rank"),
    _metric("deadpool_node_trainers", GAUGE, "Trainer processes, by state.", "node", "state"),
    _metric("deadpool_node_arena_bytes", GAUGE, "Host memory that snapshots take on this node.", "node"),
    _metric("deadpool_node_sent_bytes_total", COUNTER, "Bytes of snapshots that went to holders.", "node"),
    _metric("deadpool_node_sent_seconds_total", COUNTER, "Time that these transfers took, one by one.", "node"),
    _metric("deadpool_node_events_total", COUNTER, "Events that this agent has reported, by name.", "node", "event"),
)


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
