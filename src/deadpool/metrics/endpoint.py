"""The HTTP endpoint that Prometheus scrapes: threads of its own, never in the way of what the process is there for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deadpool.errors import ConfigError
from deadpool.metrics.catalog import OF_AGENT, OF_COORDINATOR
from deadpool.metrics.collector import families, job_values, node_values, standby_values
from deadpool.metrics.event_tail import EventTail
from deadpool.metrics.job_fold import JobFold
from deadpool.metrics.node_facts import NodeFacts


class JobCollector:
    """Reads the log on when a scrape asks, so that a coordinator which has just taken over begins with all that was.

    `events_waiting` says how many events are not in the log yet, because its disk does not take them.
    """

    def __init__(self, events: Path, is_leader: Callable[[], bool], events_waiting: Callable[[], int]) -> None:
        self._tail, self._fold = EventTail(events), JobFold()
        self._is_leader, self._events_waiting = is_leader, events_waiting
        self._lock = threading.Lock()  # two scrapes at once

    def collect(self) -> Iterator[Any]:
        with self._lock:
            if not self._is_leader():
                return families(OF_COORDINATOR, standby_values())
            for record in self._tail.read():
                self._fold.add(record)
            return iter(list(families(OF_COORDINATOR, job_values(self._fold, self._events_waiting()))))


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
