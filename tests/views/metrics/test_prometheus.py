"""A real Prometheus scrapes a real job through a real kill, and through the death of its coordinator."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_deployed_files import PROMETHEUS, expressions
from waiting import LIMIT_S, wait_until

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool_lab.workload.run import SCRIPT

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is missing: scripts/packages gets it"),
    pytest.mark.thorough,
    pytest.mark.timeout(900),
]
SMALL = ["--layers", "2", "--width", "64", "--sequence", "32", "--vocabulary", "256"]
ALL = 4  # the coordinator and three agents


def free_ports(count: int) -> int:
    """The first of so many free ones in a row."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first, contextlib.ExitStack() as held:
            port = int(first.getsockname()[1])
            try:
                for more in range(1, count):
                    held.enter_context(socket.create_server(("127.0.0.1", port + more)))
                return port
            except (OSError, OverflowError):
                continue


class Prometheus:
    def __init__(self, folder: Path, first_target: int) -> None:
        self._folder, self.port = folder, free_ports(1)
        targets = [f"127.0.0.1:{first_target + n}" for n in range(ALL)]
        jobs = [("deadpool-coordinator", targets[:1]), ("deadpool-agent", targets[1:])]
        folder.mkdir()
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"},
            "rule_files": [str(PROMETHEUS / "deadpool-alerts.yml")],
            "scrape_configs": [{"job_name": n, "static_configs": [{"targets": t}]} for n, t in jobs],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # YAML takes JSON

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        words = [
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(LIMIT_S)

    def query(self, expression: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return list(json.load(answer)["data"]["result"])

    def value(self, expression: str) -> float | None:
        """None: there is no such series (yet), or the server is still starting."""
        try:
            found = self.query(expression)
        except OSError:
            return None
        return float(found[0]["value"][1]) if found else None

    def await_value(self, expression: str, good: Callable[[float], bool]) -> None:
        def is_good() -> bool:
            value = self.value(expression)
            return value is not None and good(value)

        wait_until(is_good, lambda: f"another value of {expression} than {self.value(expression)}")


def test_prometheus_sees_a_kill_and_a_coordinator_that_dies(tmp_path):
    port = free_ports(ALL)
    prometheus = Prometheus(tmp_path / "prometheus", port)
    config = JobConfig(nodes=2, spares=1, node_timeout_s=60.0, metrics_port=port).checked()
    script = [str(SCRIPT), "--out", str(tmp_path / "out"), "--layout", "fsdp2", "--steps", "1000000", *SMALL]
    job = LocalJob(config, RunDir.create(tmp_path / "run"), script, quiet=True)
    with prometheus.running(), running(job):
        see = prometheus.await_value
        see("deadpool_steps_total", lambda steps: steps > 20)
        see("count(up == 1)", lambda count: count == ALL)
        see("deadpool_spares", lambda spares: spares == 1)
        see("deadpool_events_total{event='rehearsed'}", lambda count: count >= 1)
        see("deadpool_watermark_step", lambda version: version > 0)
        see("sum(deadpool_node_steps_total)", lambda steps: steps > 20)

        job.kill_node("n1")
        see("deadpool_recoveries_total{kind='node'}", lambda count: count == 1)
        assert prometheus.value("sum(deadpool_faults_total)") == 1
        see("deadpool_spares", lambda spares: spares == 0)
        see("ALERTS{alertname='DeadPoolNoSpare'}", lambda state: state == 1)
        see("count(up == 0)", lambda count: count == 1)  # the agent that was killed
        lost_s = prometheus.value("deadpool_lost_seconds_total")
        assert lost_s is not None and lost_s > 0
        assert prometheus.value("count(deadpool_recovery_phase_seconds_count == 1)") == 6
        share = prometheus.value("deadpool_goodput_ratio")
        assert share is not None and 0 < share < 1

        before = prometheus.value("deadpool_steps_total")
        assert before is not None
        kill_coordinator(job)
        see("deadpool_takeovers_total", lambda count: count == 1)
        see("deadpool_steps_total", lambda steps: steps > before + 10)
        assert prometheus.value("deadpool_recoveries_total{kind='node'}") == 1
        for counter in (
            "steps_total",
            "lost_steps_total",
            "sent_bytes_total",
            "step_seconds_count",
            "lost_seconds_total",
        ):
            assert prometheus.value(f"max_over_time(resets(deadpool_{counter}[5m])[1m:1s])") == 0, counter
        assert prometheus.value("deadpool_lost_seconds_total") == lost_s
        for expression in expressions():  # of the Grafana dashboard
            asked = expression.replace("$__interval", "1m").replace("$job", ".*")
            assert prometheus.query(asked) or "overhead" in asked or "changes(" in asked, asked


def kill_coordinator(job: LocalJob) -> None:
    """It is started again by whoever polls the job."""
    assert job.coordinator is not None
    dead = job.coordinator
    os.kill(dead.pid, signal.SIGKILL)
    dead.wait(LIMIT_S)

    def is_started_again() -> bool:
        assert job.poll() is None
        return job.coordinator is not dead

    wait_until(is_started_again, "another coordinator")
