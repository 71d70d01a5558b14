"""What a node tells its coordinator beside what the core decides, and what it prints: events, facts, lines of trainers.

Events wait here while there is no coordinator that has accepted the node.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from deadpool.config.job_config import JobConfig
from deadpool.control.agent.coordinator_client import CoordinatorClient, UnsentReports
from deadpool.control.agent.data_plane import DataPlane
from deadpool.control.agent.machine import READY_STATES, ReadyFile, machine_facts
from deadpool.control.agent.metrics import AgentMetrics
from deadpool.control.agent.rank_stats import rank_figures
from deadpool.control.console import print_line, print_record
from deadpool.control.coordinator.progress import DROPPED_FACT, STEP_TIMES_FACT, STORAGE_FACT, StorageWatch
from deadpool.control.trainers.processes import TrainerProcesses
from deadpool.events.event import Event
from deadpool.protocol.agent.core import Agent
from deadpool.protocol.agent.trainers.trainers import TrainerState
from deadpool.protocol.messages import AgentMessage, Examined, Facts, Heartbeat, Report


class NodeReports:
    def __init__(
        self,
        core: Agent,
        *,
        node: str,
        host: str,
        settings: JobConfig,
        data: DataPlane,
        processes: TrainerProcesses,
        ready_file: Path | None,
    ) -> None:
        self._core, self._node, self._host, self._data, self._processes = core, node, host, data, processes
        self._client: CoordinatorClient | None = None
        self._is_json = settings.log_format == "json"
        self._machine = machine_facts(host)
        self._unsent = UnsentReports(node)
        self._ready_file = ReadyFile(ready_file)
        self._storage = StorageWatch(
            "lines of trainers' logs",
            processes.log_trouble,
            self.report,
            dropped=processes.lines_dropped,
            node=node,
        )
        self.metrics = AgentMetrics(
            node,
            settings,
            trainers=core.trainers,
            data=data,
            is_connected=lambda: self._client is not None and self._client.is_accepted,
        )

    def use(self, client: CoordinatorClient) -> None:
        """From now on there is somebody to tell, once a coordinator has accepted the node."""
        self._client = client

    def start(self) -> None:
        self.metrics.start(self.report)

    def begin_close(self) -> None:
        """The node is about to leave: whoever looks at its ready file sees that first."""
        self._ready_file.set(False)

    def close(self) -> None:
        self.metrics.close()

    # --- for the coordinator -----------------------------------------------------------------------------------------

    def send(self, message: AgentMessage | Examined) -> None:
        if isinstance(message, Report):
            self._unsent.add(message)
            self.metrics.on_report(message)
            self._print(message)
        elif self._client is not None:
            self._client.send(message)
        if self._client is not None and self._client.is_accepted:
            self._unsent.send(self._client.send, self.report)
            if isinstance(message, Heartbeat):
                self._storage.look()
                self._client.send(Facts(facts=self._facts()))
                self._ready_file.set(all(each.state in READY_STATES for each in self._core.trainers.by_name.values()))

    def report(self, event: Event) -> None:
        self.send(Report(records=({"node": self._node, **event.record(t=time.time())},)))

    def report_unseen(self, source: str, reason: str) -> None:
        """Signs of health that this source would tell of are not seen here."""
        self.report(Event(what="health_unseen", node=self._node, detail={"source": source, "reason": reason}))

    def _facts(self) -> dict[str, object]:
        sent = self._data.sent
        return {
            "host": self._host,
            "pid": os.getpid(),
            "process_group": os.getpgid(0),
            "trainer_pids": self._processes.pids(),
            "arena_bytes": self._data.arena_bytes,
            "bytes_pushed": sent.total,
            "push_gbps": sent.gbps,
            "rank_figures": rank_figures(self._core, sent),
            STEP_TIMES_FACT: self.metrics.step_times(),
            STORAGE_FACT: self._storage.facts(),
            DROPPED_FACT: self._storage.losses(),
            "parked_work": None,
            "rehearsed": [
                {"rank": each.rank, "memory_bytes": each.memory_bytes, "device_bytes": each.device_bytes}
                for each in self._core.trainers.by_name.values()
                if each.state is TrainerState.PARKED
            ],
            **{name: fact for part in self._core.features for name, fact in part.facts().items()},
            **self._machine,
        }

    # --- for people --------------------------------------------------------------------------------------------------

    def _print(self, report: Report) -> None:
        """Prints records in JSON; in text the coordinator's lines are enough."""
        for record in report.records if self._is_json else ():
            print_record(**{"process": "agent", "node": self._node, **record})

    def show(self, name: str, text: str) -> None:
        """Prints a line of a trainer. Those of one without a rank, as in a rehearsal, go to its log only."""
        trainer = self._core.trainers.by_name.get(name)
        if trainer is None or trainer.state is not TrainerState.SEATED:
            return
        if self._is_json:
            print_record(
                process="trainer", node=self._node, rank=trainer.rank, trainer=name, cause=self._core.cause, text=text
            )
        else:
            print_line(f"[{self._node} r{trainer.rank}] {text}")
