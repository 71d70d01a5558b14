"""The endpoint that Prometheus scrapes, over HTTP, and what it says when coordinators change."""

from __future__ import annotations

import json
import re
import socket
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from ports import reserved_port
from records import progress, recovery, start
from small_disk import small_disk
from waiting import wait_until

from deadpool.config.job_config import JobConfig
from deadpool.errors import ConfigError
from deadpool.events.log import EventLog
from deadpool.views.metrics.catalog import OF_AGENT, OF_COORDINATOR, document
from deadpool.views.metrics.endpoint import Endpoint, JobCollector, NodeCollector, check_package
from deadpool.views.metrics.folds import NodeFacts, StepTimes

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
RECORDS = [*start(), progress(110.0, step=12, overhead=0.01, overhead_error=0.002), *recovery(120.0, number=1)]


def scraped(collector) -> dict[str, float]:
    """Samples by name with labels, after one real request."""
    with reserved_port() as port:
        endpoint = Endpoint("127.0.0.1", port)
        assert endpoint.start(collector) is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
                text = answer.read().decode()
        finally:
            endpoint.close()
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def write(path: Path, records) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_coordinator_says_what_has_happened(tmp_path):
    write(tmp_path / "events.jsonl", RECORDS)
    waiting = [json.dumps({"t": 140.0 + n, "what": "x"}).encode() for n in range(7)]
    found = scraped(JobCollector(tmp_path / "events.jsonl", lambda: True, lambda: waiting))
    assert found["deadpool_recoveries_total{kind=node}"] == 1 and found["deadpool_recoveries_total{kind=hang}"] == 0
    assert found["deadpool_phase{phase=running}"] == 1 and found["deadpool_phase{phase=recovering}"] == 0
    assert found["deadpool_recovery_phase_seconds_sum{phase=connect}"] == 4.0
    assert found["deadpool_recovery_phase_seconds_bucket{le=2.5,phase=plan}"] == 1
    assert found["deadpool_recovery_phase_seconds_bucket{le=0.5,phase=plan}"] == 0
    assert found["deadpool_steps_total"] == 12 and found["deadpool_overhead_ratio"] == 0.01
    assert found["deadpool_events_waiting"] == 7
    assert "deadpool_slowest_transfer_bytes_per_second" not in found  # nothing was sent yet: not known is not 0


def test_figures_go_on_while_the_disk_is_full(tmp_path):
    """The log stands still, and the metrics do not; what was in memory counts once, also when it is written."""
    with small_disk(tmp_path / "disk") as disk, closing(EventLog(disk.path / "events.jsonl")) as log:
        log.start()
        collector = JobCollector(disk.path / "events.jsonl", lambda: True, log.unwritten)
        for record in RECORDS:
            log.write(record)
        wait_until(lambda: not log.unwritten(), "the records")
        assert scraped(collector)["deadpool_recoveries_total{kind=node}"] == 1
        disk.fill()
        failed = {"t": 150.0, "what": "storage_failed", "what_waits": "events", "reason": "full", "waiting": 1}
        long = {"t": 150.0, "what": "x", "text": "y" * 9000}  # the last page of the file may have some room
        for record in (long, failed, *recovery(160.0, number=2), *recovery(190.0, number=3)):
            log.write(record)
        wait_until(log.trouble, "trouble")
        full = scraped(collector)
        assert full["deadpool_recoveries_total{kind=node}"] == 3 and full["deadpool_events_waiting"] > 0
        assert full["deadpool_unwritten{node=,what=events}"] == 1
        disk.empty()
        wait_until(lambda: not log.unwritten(), "the disk to take it")
        log.write({"t": 250.0, "what": "storage_back", "what_waits": "events", "dropped": 0})
        wait_until(lambda: not log.unwritten(), "the last record")
        written = scraped(collector)
        assert written["deadpool_recoveries_total{kind=node}"] == 3 and written["deadpool_events_waiting"] == 0
        assert "deadpool_unwritten{node=,what=events}" not in written


def test_line_that_is_written_while_a_scrape_looks_counts_once(tmp_path):
    path, last = tmp_path / "events.jsonl", {"t": 150.0, "what": "took_over", "term": 2, "running": True, "nodes": []}
    write(path, [*RECORDS, last])
    found = scraped(JobCollector(path, lambda: True, lambda: [json.dumps(last).encode()]))
    assert found["deadpool_takeovers_total"] == 1 and found["deadpool_events_waiting"] == 0


@pytest.mark.parametrize("left", [None, 0, 2])
def test_standbys_that_answer(tmp_path, left):
    """A job without any has no such figure, so no alert either."""
    write(tmp_path / "events.jsonl", RECORDS)
    found = scraped(JobCollector(tmp_path / "events.jsonl", lambda: True, list, lambda: left))
    assert found.get("deadpool_standbys") == left


def test_coordinator_that_takes_over_goes_on_where_the_last_one_was(tmp_path):
    """Counters are those of the log, not of the process: none falls, and none counts twice."""
    path = tmp_path / "events.jsonl"
    write(path, RECORDS)
    before = scraped(JobCollector(path, lambda: True, list))
    write(path, [*RECORDS, {"t": 150.0, "what": "took_over", "term": 2, "running": True, "nodes": []}])
    after = scraped(JobCollector(path, lambda: True, list))
    counters = [name for name in before if "_total" in name or "_bucket" in name or "_count" in name]
    assert len(counters) > 50
    assert {name: after[name] for name in counters} == {name: before[name] for name in counters} | {
        "deadpool_takeovers_total": 1.0
    }


def test_standby_has_no_figures_of_the_job(tmp_path):
    """Else a sum over all coordinators would count everything twice."""
    write(tmp_path / "events.jsonl", RECORDS)
    found = scraped(JobCollector(tmp_path / "events.jsonl", lambda: False, list))
    assert found.pop("deadpool_leading") == 0
    assert {name.partition("{")[0] for name in found} == {"deadpool_build_info"}


def node_facts() -> NodeFacts:
    steps = StepTimes()
    steps.add(3, 0.3)
    steps.add(3, 400.0)
    return NodeFacts(
        node="gpu-a1",
        connected=True,
        step_times=steps.by_rank,
        trainers={"seated": 1},
        arena_bytes=5,
        sent_bytes=7,
        sent_seconds=0.5,
        events={"aborted": 1},
    )


def test_agent_says_what_its_node_does():
    found = scraped(NodeCollector(node_facts))
    assert found["deadpool_node_step_seconds_bucket{le=0.5,node=gpu-a1,rank=3}"] == 1
    assert found["deadpool_node_step_seconds_bucket{le=+Inf,node=gpu-a1,rank=3}"] == 2
    assert found["deadpool_node_steps_total{node=gpu-a1,rank=3}"] == 2
    assert found["deadpool_node_sent_bytes_total{node=gpu-a1}"] == 7


def test_everything_in_the_catalog_is_exposed_and_nothing_else(tmp_path):
    full = {"transfer_bytes_per_s": 1.0, "slowest_bytes_per_s": 1.0}
    told = progress(140.0, step=13, overhead=0.1, overhead_error=0.1, **full)
    failed = {"t": 150.0, "what": "storage_failed", "node": "n1", "what_waits": "lines", "reason": "", "waiting": 1}
    write(tmp_path / "events.jsonl", [*RECORDS, told, failed])
    kinds = {
        OF_COORDINATOR: JobCollector(tmp_path / "events.jsonl", lambda: True, list, lambda: 1),
        OF_AGENT: NodeCollector(node_facts),
    }
    for catalog, collector in kinds.items():
        exposed = {re.sub(r"_(bucket|sum|count)$", "", name.partition("{")[0]) for name in scraped(collector)}
        assert exposed == {metric.name for metric in catalog}


@pytest.mark.parametrize("metric", dict.fromkeys((*OF_COORDINATOR, *OF_AGENT)), ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric):
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(ms|millis|kb|mb|gb|gbps|percent|minutes)\b", metric.name)
    assert metric.help.endswith(".") and "|" not in metric.help


def test_page_is_current():
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text() == document(), "renew it: python -m deadpool.views.metrics > docs/metrics.md"


def test_port_that_is_taken_is_said_and_ends_nothing():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = Endpoint("127.0.0.1", taken.getsockname()[1])
        assert "Address already in use" in str(endpoint.start(NodeCollector(node_facts)))
        endpoint.close()


def test_missing_package_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    check_package(0)
    with pytest.raises(ConfigError, match="prometheus_client"):
        check_package(9400)


def test_processes_of_one_machine_have_ports_of_their_own():
    assert [JobConfig(metrics_port=9400).metrics_port_of(n) for n in range(3)] == [9400, 9401, 9402]
    assert JobConfig().metrics_port_of(2) == 0
    with pytest.raises(ConfigError, match="metrics_port"):
        JobConfig(metrics_port=70000, holders=0).checked()
