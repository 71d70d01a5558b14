"""What Prometheus scrapes.

The HTTP endpoint that Prometheus scrapes: threads of its own, never in the way of what the process is there for.

Turns folds into the families of prometheus_client, when a scrape asks for them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deadpool import __version__
from deadpool.errors import ConfigError
from deadpool.views.metrics.catalog import COUNTER, HISTOGRAM, OF_AGENT, OF_COORDINATOR, Metric
from deadpool.views.metrics.folds import JOB_PHASES, EventTail, Histogram, JobFold, NodeFacts

Labels = tuple[str, ...]
Values = Mapping[Labels, Any]
"""The values of a metric by its labels; () where it has none. What is None is left out."""


def job_values(fold: JobFold, events_waiting: int, standbys: int | None = None) -> dict[str, Values]:
    """Returns the values of a job by metric. Whatever only a progress event tells is left out until there is one."""
    recoveries, progress = fold.recoveries, fold.progress
    single = {
        "deadpool_steps_total": fold.steps,
        "deadpool_step": progress.get("step"),
        "deadpool_step_seconds": fold.step_times,
        "deadpool_watermark_step": progress.get("watermark"),
        "deadpool_watermark_lag_steps": progress.get("lag_steps"),
        "deadpool_capture_interval_steps": progress.get("every"),
        "deadpool_overhead_ratio": progress.get("overhead"),
        "deadpool_overhead_error_ratio": progress.get("overhead_error"),
        "deadpool_recovery_seconds": recoveries.seconds,
        "deadpool_lost_steps_total": recoveries.lost_steps,
        "deadpool_lost_seconds_total": recoveries.stopped_s,
        "deadpool_goodput_ratio": fold.goodput(),
        "deadpool_nodes": progress.get("nodes"),
        "deadpool_spares": progress.get("spares"),
        "deadpool_carried_ranks": fold.carried_ranks,
        "deadpool_quarantined_nodes": progress.get("quarantined"),
        "deadpool_stragglers": progress.get("stragglers"),
        "deadpool_arena_bytes": progress.get("arena_bytes"),
        "deadpool_sent_bytes_total": fold.sent_bytes,
        "deadpool_transfer_bytes_per_second": progress.get("transfer_bytes_per_s"),
        "deadpool_slowest_transfer_bytes_per_second": progress.get("slowest_bytes_per_s"),
        "deadpool_evictions_total": fold.events["eviction"],
        "deadpool_corruptions_total": fold.events["corruption_found"],
        "deadpool_step_audits_total": fold.events["step_audit_passed"],
        "deadpool_corruption_unsolved": int(fold.events["corruption_unsolved"] > 0),
        "deadpool_protection_changes_total": fold.events["protection"],
        "deadpool_takeovers_total": fold.events["took_over"],
        "deadpool_newest_event_timestamp_seconds": fold.newest,
        "deadpool_events_waiting": events_waiting,
        "deadpool_standbys": standbys,
    }
    return {
        **{name: {(): value} for name, value in single.items()},
        "deadpool_build_info": {(__version__,): 1},
        "deadpool_leading": {(): 1},
        "deadpool_unwritten": dict.fromkeys(fold.unwritten, 1),
        "deadpool_phase": {(phase,): int(phase == fold.phase) for phase in JOB_PHASES},
        "deadpool_faults_total": {(kind,): count for kind, count in recoveries.faults.items()},
        "deadpool_recoveries_total": {(kind,): count for kind, count in recoveries.recoveries.items()},
        "deadpool_recovery_phase_seconds": {(phase,): histogram for phase, histogram in recoveries.phases.items()},
        "deadpool_events_total": {(event,): count for event, count in fold.events.items()},
    }


def standby_values() -> dict[str, Values]:
    return {"deadpool_build_info": {(__version__,): 1}, "deadpool_leading": {(): 0}}


def node_values(facts: NodeFacts) -> dict[str, Values]:
    node = facts.node
    return {
        "deadpool_build_info": {(__version__,): 1},
        "deadpool_node_connected": {(node,): int(facts.connected)},
        "deadpool_node_steps_total": {(node, str(r)): h.count for r, h in facts.step_times.items()},
        "deadpool_node_step_seconds": {(node, str(r)): h for r, h in facts.step_times.items()},
        "deadpool_node_trainers": {(node, state): count for state, count in facts.trainers.items()},
        "deadpool_node_arena_bytes": {(node,): facts.arena_bytes},
        "deadpool_node_sent_bytes_total": {(node,): facts.sent_bytes},
        "deadpool_node_sent_seconds_total": {(node,): facts.sent_seconds},
        "deadpool_node_events_total": {(node, event): count for event, count in facts.events.items()},
    }


def families(metrics: Iterable[Metric], values: Mapping[str, Values]) -> Iterator[Any]:
    for metric in metrics:
        found = {labels: value for labels, value in values.get(metric.name, {}).items() if value is not None}
        if found:
            yield _family(metric, found)


def _family(metric: Metric, found: Values) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if metric.kind == HISTOGRAM:
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, histogram in found.items():
            histograms.add_metric(labels, _buckets(histogram), histogram.total)
        return histograms
    kind: Any = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in found.items():
        family.add_metric(labels, float(value))
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Returns the buckets as Prometheus has them: each with all that are smaller."""
    buckets, so_far = [], 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        so_far += count
        buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(so_far)))
    return buckets


_REMEMBERED = 1000
"""Records of the log that could be among those which were not written a moment before."""


class JobCollector:
    """Reads the log on when a scrape asks, so that a coordinator which has just taken over begins with all that was.

    `unwritten` has the lines that are not in the log yet, because its disk does not take them; they count as well.
    `standbys` says how many standby coordinators answer; None: the job has none.
    """

    def __init__(
        self,
        events: Path,
        is_leader: Callable[[], bool],
        unwritten: Callable[[], list[bytes]],
        standbys: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._tail, self._fold = EventTail(events), JobFold()
        self._is_leader, self._unwritten, self._standbys = is_leader, unwritten, standbys
        self._newest: set[str] = set()  # of the log, as they were read
        self._lock = threading.Lock()  # two scrapes at once

    def collect(self) -> Iterator[Any]:
        with self._lock:
            if not self._is_leader():
                return families(OF_COORDINATOR, standby_values())
            lines = (
                self._unwritten()
            )  # before the log is read: a line that is written meanwhile is in both, not in none
            self._read_log()
            fold, waiting = self._with(lines)
            return iter(list(families(OF_COORDINATOR, job_values(fold, waiting, self._standbys()))))

    def _read_log(self) -> None:
        read = []
        with contextlib.suppress(OSError):  # its disk is away
            for record in self._tail.read():
                self._fold.add(record)
                read.append(record)
        if read:
            self._newest = {_key(record) for record in read[-_REMEMBERED:]}

    def _with(self, lines: list[bytes]) -> tuple[JobFold, int]:
        """The figures with what is not written, which is folded anew each time, and how many records that is."""
        records = [json.loads(line) for line in lines]
        missing = [record for record in records if _key(record) not in self._newest]
        if not missing:
            return self._fold, 0
        fold = copy.deepcopy(self._fold)
        for record in missing:
            fold.add(record)
        return fold, len(missing)


def _key(record: dict[str, Any]) -> str:
    return json.dumps(record, sort_keys=True)


class NodeCollector:
    def __init__(self, facts: Callable[[], NodeFacts]) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Any]:
        return families(OF_AGENT, node_values(self._facts()))


class Endpoint:
    """Serves one collector. A port that is taken is a reason to go on without metrics, not to end a job."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self, collector: Any) -> str | None:
        """Returns why it does not listen; None: it does."""
        if self._port == 0:
            return None
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            return f"no metrics: {error}"
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(self._port, self._host, registry)
        except OSError as error:
            return f"no metrics at {self._host}:{self._port}: {error.strerror or error}"
        return None

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            assert self._thread is not None
            self._thread.join()
            self._server = None


def check_package(port: int) -> None:
    """Called before anything is started."""
    if port == 0:
        return
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"metrics_port={port} needs the package prometheus_client: pip install 'torch-deadpool[metrics]', or leave "
            "--metrics-port out"
        ) from None
