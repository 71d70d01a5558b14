"""The HTTP endpoint that Prometheus scrapes: threads of its own, never in the way of what the process is there for."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deadpool.errors import ConfigError
from deadpool.views.metrics.catalog import OF_AGENT, OF_COORDINATOR
from deadpool.views.metrics.collector import families, job_values, node_values, standby_values
from deadpool.views.metrics.event_tail import EventTail
from deadpool.views.metrics.job_fold import JobFold
from deadpool.views.metrics.node_facts import NodeFacts

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
